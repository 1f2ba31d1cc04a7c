// Keys, while no field is edited: / goes to the query, j and k to the next and previous hit, which Enter opens.
const hits = [...document.querySelectorAll("main h3 a")]
document.querySelector(".keys")?.removeAttribute("hidden")
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, textarea")) return
  const current = hits.findIndex((hit) => hit.closest("li").contains(document.activeElement))
  const query = document.querySelector("#q")
  if (event.key === "/") query.focus(), query.select()
  else if (event.key === "j") hits[Math.min(current + 1, hits.length - 1)]?.focus()
  else if (event.key === "k") hits[Math.max(current - 1, 0)]?.focus()
  else return
  event.preventDefault()
})
