// The library: square cells, of which only those near the screen exist, so 100,000 images scroll as well as a
// hundred. Pages of the list are fetched when they come near.

import {get, load, thumbnail} from "./api.js";
import {$, count, h} from "./dom.js";
import {imageLink} from "./route.js";
import {isCommand} from "./shared.js";

const PAGE = 500; // images per request
const TALLEST = 15_000_000; // pixels; browsers draw nothing beyond about 17 million
const SPARE = 2; // rows kept above and below the screen
const SETTLED = 90; // milliseconds that a fast scroll must pause before thumbnails are fetched

/** The images of the index, fetched one page after the other. */
export class Listing {
	images = [];
	total = 0;
	#wanted = 0;

	constructor(filter) {
		this.filter = filter;
	}

	/** Fetches until image `wanted` is there; calls `arrived` after each page. */
	reach(wanted, arrived) {
		this.#wanted = Math.max(this.#wanted, wanted);
		this.busy ??= this.#fetch(arrived).finally(() => (this.busy = null));
		return this.busy;
	}

	async #fetch(arrived) {
		while (!this.done && this.images.length <= this.#wanted) {
			const page = await get("images", {limit: PAGE, cursor: this.cursor, filter: this.filter});
			this.images.push(...page.images);
			this.cursor = page.next;
			this.done = !page.next;
			this.total = this.done ? this.images.length : Math.max(page.total, this.images.length);
			arrived();
		}
	}
}

export class Grid {
	cells = new Map(); // those that exist, by place
	active = 0; // the place that Tab leads to
	list = h("ul.library", {"aria-label": "All images"});
	note = h("p.note", {hidden: true});
	element = h("div", this.list, this.note);
	soon = () => (this.frame ??= requestAnimationFrame(() => this.#draw()));

	constructor(listing, failed, signal) {
		Object.assign(this, {listing, failed});
		this.list.addEventListener("keydown", e => this.#key(e));
		this.list.addEventListener("focusin", e => this.#activate(Number(e.target.closest("li").dataset.place)));
		addEventListener("scroll", this.soon, {passive: true, signal});
		const resized = new ResizeObserver(() => this.measure());
		resized.observe(this.list);
		signal.addEventListener("abort", () => resized.disconnect());
	}

	measure() {
		const width = this.list.clientWidth;
		const [wanted, gap] = width < 600 ? [110, 4] : [190, 8];
		this.columns = Math.max(2, Math.round((width + gap) / (wanted + gap)));
		this.row = (width + gap) / this.columns; // from one row to the next
		this.side = this.row - gap;
		for (const [place, cell] of this.cells) this.#put(cell, place);
		this.#draw();
	}

	#draw() {
		this.frame = null;
		const {listing, columns, row} = this;
		if (!this.list.isConnected) return; // another view is shown by now
		const shown = Math.min(listing.total, Math.floor(TALLEST / row) * columns);
		this.list.style.height = `${Math.ceil(shown / columns) * row}px`;
		this.note.hidden = shown === listing.total;
		this.note.textContent = `${count(listing.total - shown)} more images are not shown here. Use a filter, or search.`;

		const top = Math.max(0, -this.list.getBoundingClientRect().top);
		const first = Math.max(0, Math.floor(top / row) - SPARE) * columns;
		const last = Math.min(shown, (Math.ceil((top + innerHeight) / row) + SPARE) * columns);
		const fast = Math.abs(top - (this.top ?? top)) > innerHeight / 2;
		this.top = top;

		const free = [];
		for (const [place, cell] of this.cells) {
			if ((place < first || place >= last) && !cell.contains(document.activeElement)) {
				this.cells.delete(place);
				free.push(cell);
			}
		}
		for (let place = first; place < last; place++) {
			if (!this.cells.has(place)) {
				const cell = free.pop() ?? this.list.appendChild(h("li"));
				this.cells.set(place, cell);
				this.#put(cell, place);
			}
			this.#fill(this.cells.get(place), place, fast);
		}
		for (const cell of free) cell.remove();
		clearTimeout(this.timer);
		if (fast) this.timer = setTimeout(this.soon, SETTLED);
		if (!listing.done && last + 2 * columns >= listing.images.length) listing.reach(last + 4 * columns, this.soon).catch(this.failed);
	}

	#put(cell, place) {
		cell.style.width = cell.style.height = `${this.side}px`;
		cell.style.transform = `translate(${(place % this.columns) * this.row}px, ${Math.floor(place / this.columns) * this.row}px)`;
		cell.dataset.place = place;
		cell.ariaPosInSet = place + 1;
		cell.ariaSetSize = this.listing.total;
	}

	/** Shows in a cell the image of its place, or nothing until the list has arrived there. */
	#fill(cell, place, fast) {
		const image = this.listing.images[place];
		if (cell.image !== image || !cell.firstChild) {
			cell.image = image;
			const img = h("img", {draggable: "false", alt: image?.name ?? "", onload: () => anchor.classList.add("there"), onerror: () => anchor.classList.add("missing")});
			const anchor = h("a.cell", {href: image && imageLink(image.id)}, img, image && h("span.name", {"aria-hidden": "true"}, image.name));
			cell.replaceChildren(anchor);
		}
		const anchor = cell.firstChild;
		anchor.tabIndex = place === this.active ? 0 : -1;
		if (image && !fast && !anchor.firstChild.dataset.source) load(anchor.firstChild, thumbnail(image.id, this.side));
	}

	#activate(place) {
		for (const each of [this.active, place]) this.cells.get(each)?.firstChild.setAttribute("tabindex", each === place ? 0 : -1);
		this.active = place;
	}

	/** Arrow keys move the focus; the grid has one stop for Tab. */
	#key(e) {
		const {columns, row} = this;
		const screen = Math.max(1, Math.floor(innerHeight / row) - 1) * columns;
		const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -screen, PageDown: screen, Home: -Infinity, End: Infinity}[e.key];
		if (!step || isCommand(e)) return;
		e.preventDefault();
		const place = Math.min(this.listing.images.length - 1, Math.max(0, this.active + step));
		// The cell may not exist yet, so the place is scrolled to by its number.
		const top = this.list.getBoundingClientRect().top + Math.floor(place / columns) * row;
		const above = top - $(".top").offsetHeight - 8;
		const below = top + row - innerHeight;
		scrollBy(0, above < 0 ? above : Math.max(0, below));
		this.#activate(place);
		this.#draw();
		this.cells.get(place).firstChild.focus({preventScroll: true});
	}
}
