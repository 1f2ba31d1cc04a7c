// A key does what its button does, while the focus is in the page's main part.
document.querySelector("main").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return
  const button = document.querySelector(`button[aria-keyshortcuts="${CSS.escape(event.key)}"]`)
  if (button) button.click()
})
