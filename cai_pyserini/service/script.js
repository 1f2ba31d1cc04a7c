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

// From match to match: from the one that the address names, or else from the middle of the window, and at the ends to
// other parts of the document.
const middle = (match) => match.getBoundingClientRect().top - innerHeight / 2
steps.forEach((link) => link.addEventListener("click", (event) => {
  const step = Number(link.dataset.step)
  const target = document.querySelector("mark:target, #last-match:target + mark")
  const isSeen = target && Math.abs(middle(target)) < innerHeight / 2
  const inOrder = step > 0 ? matches : [...matches].reverse()
  const next = isSeen ? matches[matches.indexOf(target) + step] : inOrder.find((match) => middle(match) * step > 0)
  if (next) event.preventDefault(), location.replace(`#${next.id}`)
  else if (link.getAttribute("href").startsWith("#")) event.preventDefault()
}))
