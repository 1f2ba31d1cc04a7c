// The page: what search.js finds while a query is typed, with marked words and the terms of each score.
import { load, WORD } from "./search.js"

const [form, field, status, list] = ["form", "#q", "#status", "#hits"].map((name) => document.querySelector(name))
export const index = await load().catch((error) => {
  status.textContent = `The index cannot be loaded (${error.message}).`
  throw error
})

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties)
  made.append(...children)
  return made
}

function marked(text, words) {
  const isOwn = (stem) => words.some(([, terms]) => terms.includes(WORD + stem))
  const pieces = text.split(/([\p{L}\p{N}\p{M}]+)/u)
  return pieces.map((piece, i) => (i % 2 && index.analyze(piece).some(isOwn) ? element("mark", {}, piece) : piece))
}

// The words of the query, [word, terms] each, that a hit has, and those that only similar documents have.
function summary(hit, words) {
  const present = index.analyze(`${hit.title} ${hit.text}`).map((stem) => WORD + stem)
  const scored = hit.terms.map(({ term }) => term).filter((term) => term.startsWith(WORD))
  const having = (some) => words.filter(([, terms]) => terms.some((term) => some.includes(term)))
  const own = having(present), near = having(scored).filter((word) => !own.includes(word))
  const found = [["your words ", own], ["in similar documents ", near]].filter(([, some]) => some.length)
  const parts = found.map(([label, some]) => [label, element("b", {}, some.map(([word]) => word).join(", "))])
  return parts.length ? parts.flatMap((part, i) => (i ? [" · ", ...part] : part)) : ["parts of your words"]
}

function why(hit, words) {
  const rows = hit.terms.map(({ term, weight, impact, adds }) => {
    const meter = element("meter", { value: adds / hit.terms[0].adds, ariaHidden: "true" })
    const cells = [`${weight} × ${impact}`, adds.toFixed(2), meter].map((cell) => element("td", {}, cell))
    return element("tr", {}, element("th", { scope: "row" }, term), ...cells)
  })
  const header = ["term", "query × impact", "adds"].map((name) => element("th", { scope: "col" }, name))
  const head = element("thead", {}, element("tr", {}, ...header, element("td")))
  const table = element("table", {}, head, element("tbody", {}, ...rows))
  return element("details", { className: "why" }, element("summary", {}, ...summary(hit, words)), table)
}

function show() {
  const start = performance.now(), { hits, count } = index.search(field.value), time = performance.now() - start
  const words = (field.value.match(/[\p{L}\p{N}\p{M}']+/gu) ?? []).map((word) => [word, [...index.query(word).keys()]])
  const items = hits.map((hit) => {
    const href = `https://hpo.jax.org/browse/term/${encodeURIComponent(hit.id)}`
    const title = element("h3", {}, element("a", { href }, ...marked(hit.title, words)))
    const note = element("p", { className: "note" }, `${hit.id}, score ${hit.score.toFixed(2)}`)
    return element("li", {}, title, note, element("p", {}, ...marked(hit.text, words)), why(hit, words))
  })
  list.replaceChildren(...items)
  const [found, all] = [count, index.documents.length].map((number) => number.toLocaleString("en"))
  const none = field.value.trim() ? "No document was found." : `${all} documents are loaded.`
  status.textContent = count ? `The best ${hits.length} of ${found} documents, in ${time.toFixed(1)} ms.` : none
}

function submit(event, query) {
  event.preventDefault()
  field.value = query
  history.replaceState(null, "", `?${new URLSearchParams({ q: query })}`)
  show()
}

for (const [id, text] of Object.entries(index.about)) document.getElementById(id).textContent = text
field.value ||= new URLSearchParams(location.search).get("q") ?? ""
field.oninput = show
form.onsubmit = (event) => submit(event, field.value)
for (const link of form.querySelectorAll("a")) link.onclick = (event) => submit(event, link.textContent)
show()
