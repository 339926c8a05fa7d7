// Tables of the class "sortable": a click on a header sorts by that column, and a box above keeps the rows that hold all its words.
const valueOf = cell => {
  const given = cell.dataset.sort ?? cell.textContent.trim()
  return given !== "" && !Number.isNaN(Number(given)) ? Number(given) : given
}

// Numbers by size and before words, whichever way is up; words by the alphabet.
const compare = (a, b, sign) => {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b))
}

const sortBy = (table, column) => {
  const header = table.tHead.rows[0].cells[column]
  const falling = header.ariaSort === "ascending"
  for (const cell of table.tHead.rows[0].cells) cell.ariaSort = null
  header.ariaSort = falling ? "descending" : "ascending"
  const rows = [...table.tBodies[0].rows]
  rows.sort((one, other) => compare(valueOf(one.cells[column]), valueOf(other.cells[column]), falling ? -1 : 1))
  table.tBodies[0].append(...rows)
}

const addFilter = table => {
  const box = document.createElement("input")
  box.type = "search"
  box.className = "table-filter"
  box.placeholder = "Only rows with…"
  box.ariaLabel = "Only rows with these words"
  box.oninput = () => {
    const words = box.value.toLowerCase().split(/\s+/)
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase()
      row.hidden = !words.every(word => text.includes(word))
    }
  }
  const place = table.closest(".md-typeset__scrollwrap") ?? table
  place.before(box)
}

const prepare = table => {
  addFilter(table)
  for (const [column, cell] of [...table.tHead.rows[0].cells].entries()) {
    cell.tabIndex = 0
    cell.onclick = () => sortBy(table, column)
    cell.onkeydown = event => { if (event.key === "Enter") sortBy(table, column) }
  }
}

document.querySelectorAll("table.sortable").forEach(prepare)
