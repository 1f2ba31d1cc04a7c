// Searches the impacts that docs/demo.py writes as Lucene does. Queries are bags of word pieces and BM25's words, as in
// vectors/queries.py. Texts in Latin and Greek letters are analyzed as there, others only roughly.
export const WORD = "bm25:"
const STOP_WORDS = `a an and are as at be but by for if in into is it no not of on or such that the their then there
  these they this to was will with`.split(/\s+/)

// As in core/text.py; `characters` are those that become others.
const normalized = (text, characters) =>
  text
    .replace(/[^\0-\x7f]/gu, (character) => characters[character] ?? character)
    .normalize("NFC")
    .replace(/(?<=[0-9A-Za-z])[\uff01-\uff5e](?=[0-9A-Za-z])/g, (wide) => wide.normalize("NFKC"))

const lower = (text) => [...text].map((letter) => [...letter.toLowerCase()][0]).join("") // no final sigma, as in Java

function wordPieces(text, vocabulary) {
  const clean = text.replace(/\[(?:PAD|UNK|CLS|SEP|MASK)\]|[\t\n\r]/g, " ").replace(/[\p{Cc}\p{Cf}\p{Co}\ufffd]/gu, "")
  const plain = lower(clean.replace(/\p{Ideographic}/gu, " $& ").normalize("NFD").replace(/\p{Mn}/gu, ""))
  return (plain.match(/[\p{P}$+<=>^`|~]|[^\s\p{P}$+<=>^`|~]+/gu) ?? []).flatMap((token) => {
    const letters = [...token], pieces = []
    for (let start = 0, end = letters.length; start < letters.length; start = end, end = letters.length) {
      const piece = () => (start ? "##" : "") + letters.slice(start, end).join("")
      while (end > start && !vocabulary.has(piece())) end--
      if (end === start || letters.length > 100) return ["[UNK]"]
      pieces.push(piece())
    }
    return pieces
  })
}

// Lucene's StandardTokenizer, and the rest of Anserini's analyzer for English.
const SCRIPTS = ["Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar"].map((name) => `\\p{sc=${name}}`)
const LETTER = String.raw`[[\p{Alphabetic}\u02c2-\u02d7]--[\p{Ideographic}${SCRIPTS.join("")}]]`
const AFTER_LETTER = String.raw`[\p{M}\p{Cf}]*(?:[.':\u00b7\u0387\u2027](?=${LETTER}))?`
const AFTER_DIGIT = String.raw`[\p{M}\p{Cf}]*(?:[.',;\u037e\u2044](?=\p{Nd}))?`
const TOKEN = new RegExp(String.raw`(?:\p{Pc}*(?:${LETTER}${AFTER_LETTER}|\p{Nd}${AFTER_DIGIT}))+\p{Pc}*|\p{Ideographic}`, "gv")

function analyze(text) {
  const tokens = (text.match(TOKEN) ?? []).flatMap((token) => token.match(/[^]{1,255}/g))
  const words = tokens.map((token) => lower(token.replace(/'s$/i, "")))
  return words.filter((word) => !STOP_WORDS.includes(word)).map(stem)
}

// Porter's stemmer, as in Lucene. The shape of a word has a c for each consonant and a v for each vowel.
const STEPS = [
  [0, "ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous ization:ize " +
    "ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive biliti:ble logi:log"],
  [0, "icate:ic ative: alize:al iciti:ic ical:ic ful: ness:"],
  [1, "al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: (?<=[st])ion: ou: ism: ate: iti: ous: ive: ize:"],
].map(([least, rules]) => {
  const ends = Object.fromEntries(rules.split(" ").map((rule) => rule.split(":")))
  return [least, ends, new RegExp(`^(.*?)(${Object.keys(ends).join("|")})$`, "s")]
})
const shape = (word) =>
  word.split("").reduce((found, letter) => {
    const isVowel = "aeiou".includes(letter) || (letter === "y" && found.endsWith("c"))
    return found + (isVowel ? "v" : "c")
  }, "")
const measure = (word) => (shape(word).match(/v+c/g) ?? []).length
const hasVowel = (word) => shape(word).includes("v")
const isShort = (word) => shape(word).endsWith("cvc") && !/[wxy]$/.test(word)

function stem(word) {
  if (word.length < 3) return word
  word = word.replace(/(ss|i)es$|([^s])s$/, "$1$2")
  const [, root] = /^(.*)(?:ed|ing)$/s.exec(word) ?? []
  if (word.endsWith("eed")) word = measure(word.slice(0, -3)) > 0 ? word.slice(0, -1) : word
  else if (root !== undefined && hasVowel(root)) {
    if (/(?:at|bl|iz)$/.test(root)) word = root + "e"
    else if (/(.)\1$/.test(root) && shape(root).endsWith("c")) word = root.replace(/[^lsz]$/, "")
    else word = measure(root) === 1 && isShort(root) ? root + "e" : root
  }
  if (word.endsWith("y") && hasVowel(word.slice(0, -1))) word = word.slice(0, -1) + "i"
  for (const [least, ends, pattern] of STEPS) {
    const [, root, end] = pattern.exec(word) ?? []
    if (end && measure(root) > least) word = root + (ends[end] ?? "")
  }
  const size = measure(word)
  if (word.endsWith("e") && (size > 1 || (size === 1 && !isShort(word.slice(0, -1))))) word = word.slice(0, -1)
  return word.endsWith("ll") && size > 1 ? word.slice(0, -1) : word
}

const roundToEven = (value) => (value % 1 === 0.5 ? 2 * Math.round(value / 2) : Math.round(value)) // as in Python

const counts = (items) => [...Map.groupBy(items, (item) => item)].map(([item, { length }]) => [item, length])

class Index {
  constructor(data, bytes) {
    Object.assign(this, data)
    this.numbers = new Map(data.terms.map((term, number) => [term, number]))
    this.starts = [0]
    for (const length of data.lengths) this.starts.push(this.starts.at(-1) + length)
    const size = bytes.length / 4 // four planes: low and high bytes of gaps between documents, and of impacts
    ;[this.postings, this.impacts] = [new Uint16Array(size), new Uint16Array(size)]
    for (let i = 0; i < size; i++) {
      this.postings[i] = (this.postings[i - 1] ?? 0) + bytes[i] + 256 * bytes[size + i]
      this.impacts[i] = bytes[2 * size + i] + 256 * bytes[3 * size + i]
    }
    const accented = data.terms.filter((term) => term.startsWith(WORD) && /[^\0-\x7f]/.test(term))
    this.accented = accented.map((term) => term.slice(WORD.length)).map((word) => [word, this.spellings(word)])
  }
  analyze = (text) => analyze(normalized(text, this.characters))
  plain(word) {
    const bare = word.replace(/(?<=[\p{sc=Latin}\p{sc=Greek}])\p{Mn}+/gu, "")
    const letters = [...bare].map((letter) => this.plainLetters[letter] ?? [letter])
    return [...new Set([0, -1].map((which) => letters.map((spellings) => spellings.at(which)).join("")))]
  }
  spellings(word) {
    const plain = this.plain(word), stems = plain.map(analyze).filter((found) => found.length === 1)
    return plain.join() === word ? plain : [...plain, ...stems.flat()]
  }
  idf = (word) => Math.log1p(this.documents.length / this.lengths[this.numbers.get(WORD + word)]) || 0
  // [word, factor of its weight] of the index's words that differ by accents alone, as in indexes/accents.py.
  variants(word) {
    const spellings = this.spellings(word), own = this.idf(word)
    const alike = this.accented.filter(([, theirs]) => theirs.some((spelling) => spellings.includes(spelling)))
    const isLike = (other) =>
      [...other].length !== [...word].length ||
      [word, other].some((each) => this.plain(each).join() === each) ||
      [...other].every((a, i) => ((b) => [a, ...this.plain(a)].includes(b) || this.plain(b).includes(a))([...word][i]))
    return [...new Set([...spellings, ...alike.map(([other]) => other)])]
      .filter((other) => other !== word && this.idf(other) && isLike(other))
      .map((other) => [other, own ? 0.5 * Math.min(1, own / this.idf(other)) : 1])
  }
  query(text) {
    const pieces = wordPieces(normalized(text, this.characters), this.numbers).slice(0, this.longest)
    const rounded = (term, weight) => [WORD + term, Math.max(1, roundToEven(weight))]
    const query = new Map(counts(pieces).map(([piece, count]) => [piece, count * this.queryScale]))
    const words = counts(this.analyze(text)).map(([word, count]) => rounded(word, count * this.wordScale))
    const added = words.flatMap(([term, weight]) =>
      this.variants(term.slice(WORD.length)).map(([other, factor]) => rounded(other, weight * factor)),
    )
    return new Map([...added.sort((a, b) => a[1] - b[1]), ...words, ...query])
  }
  // The best documents, ties by id, which is their order, and the number of those that match.
  search(text, most = 10) {
    const terms = [...this.query(text)].filter(([term]) => this.numbers.has(term)).map(([term, weight]) => {
      const number = this.numbers.get(term), range = [this.starts[number], this.starts[number + 1]]
      return { term, weight, documents: this.postings.subarray(...range), impacts: this.impacts.subarray(...range) }
    })
    const sums = new Float64Array(this.documents.length), best = []
    for (const { weight, documents, impacts } of terms)
      documents.forEach((document, i) => (sums[document] += Math.fround(weight * impacts[i])))
    const scores = Float32Array.from(sums), scale = this.documentScale * this.queryScale
    scores.forEach((score, document) => {
      if (!score || (best.length === most && score <= scores[best.at(-1)])) return
      const place = best.findIndex((other) => scores[other] < score)
      best.splice(place < 0 ? best.length : place, 0, document)
      best.length = Math.min(best.length, most)
    })
    const hits = best.map((document) => {
      const [id, title, text] = this.documents[document]
      const found = terms.map(({ term, weight, documents, impacts }) => {
        const impact = impacts[documents.indexOf(document)] ?? 0
        return { term, weight, impact, adds: (weight * impact) / scale }
      })
      const scored = found.filter(({ impact }) => impact).sort((a, b) => b.adds - a.adds)
      return { id, title, text, score: scores[document] / scale, terms: scored }
    })
    return { hits, count: scores.reduce((found, score) => found + (score > 0), 0) }
  }
}

const unpacked = async (name) => new Response((await fetch(name)).body.pipeThrough(new DecompressionStream("gzip")))

export async function load() {
  const [index, postings] = await Promise.all([unpacked("index.bin"), unpacked("postings.bin")])
  return new Index(await index.json(), new Uint8Array(await postings.arrayBuffer()))
}
