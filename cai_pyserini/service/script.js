// Keys, while no field is edited: / goes to the query, j and k to the next and previous hit, which Enter opens, n and p to
// the next and previous match in a document.
const hits = [...document.querySelectorAll("main h3 a")]
const matches = [...document.querySelectorAll("mark[id]")]
const steps = [...document.querySelectorAll("a[data-step]")]
document.querySelector(".keys")?.removeAttribute("hidden")
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, textarea")) return
  const current = hits.findIndex((hit) => hit.closest("li").contains(document.activeElement))
  const query = document.querySelector("#q")
  if (event.key === "/") query.focus(), query.select()
  else if (event.key === "j") hits[Math.min(current + 1, hits.length - 1)]?.focus()
  else if (event.key === "k") hits[Math.max(current - 1, 0)]?.focus()
  else if (steps.length && "pn".includes(event.key)) steps["pn".indexOf(event.key)].click()
  else return
  event.preventDefault()
})

// The contents stand beside the text if there is room.
if (matchMedia("(min-width: 60rem)").matches) document.querySelector(".contents details")?.setAttribute("open", "")

// From match to match: from what the address names, if it is in view, or else from the top of the window; at the ends to
// other parts of the document.
const topOf = (element) => element.getBoundingClientRect().top
steps.forEach((link) => link.addEventListener("click", (event) => {
  const step = Number(link.dataset.step), inOrder = step > 0 ? matches : [...matches].reverse()
  const target = document.querySelector("#last-match:target + mark") ?? document.querySelector(":target")
  const isSeen = target && topOf(target) >= 0 && topOf(target) < innerHeight
  const start = isSeen ? topOf(target) : 0
  const current = isSeen ? matches.indexOf(target) : -1
  const next = current < 0 ? inOrder.find((match) => (topOf(match) - start + 1) * step > 0) : matches[current + step]
  if (next) event.preventDefault(), location.replace(`#${next.id}`)
  else if (link.getAttribute("href").startsWith("#")) event.preventDefault()
}))
