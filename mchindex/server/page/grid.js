// The library: a grid of square cells of which only those near the screen exist, so that it scrolls the same
// with a hundred images and with a hundred thousand. Pages of the list are fetched when they come near.

import { get, load, thumbnail, unload } from "./api.js";
import { count, h } from "./dom.js";
import { link } from "./route.js";

const PAGE = 500; // images per request
const TALLEST = 15_000_000; // pixels; browsers draw nothing beyond about 17 million
const SPARE = 2; // rows kept above and below the screen
const SETTLED = 90; // milliseconds without scrolling after which thumbnails are fetched during a fast scroll

/** The images of the index, fetched one page after the other. */
export class Listing {
	constructor(filter) {
		this.filter = filter;
		this.images = [];
		this.total = null;
		this.cursor = null;
		this.done = false;
		this.busy = null;
	}

	/** Fetches until image `wanted` is there; calls `arrived` after each page. */
	async reach(wanted, arrived) {
		this.wanted = Math.max(this.wanted ?? 0, wanted);
		this.busy ??= this.#fetch(arrived).finally(() => (this.busy = null));
		return this.busy;
	}

	async #fetch(arrived) {
		while (!this.done && this.images.length <= this.wanted) {
			const page = await get("images", { limit: PAGE, cursor: this.cursor, filter: this.filter });
			this.images.push(...page.images);
			this.cursor = page.next;
			this.done = !page.next;
			this.total = this.done ? this.images.length : Math.max(page.total ?? 0, this.images.length);
			arrived();
		}
	}
}

export class Grid {
	constructor(listing, failed) {
		this.listing = listing;
		this.failed = failed;
		this.cells = new Map(); // those that exist, by place
		this.active = 0;
		this.list = h("ul.library", { "aria-label": "All images" });
		this.note = h("p.note", { hidden: true });
		this.element = h("div", this.list, this.note);
		this.list.addEventListener("keydown", (event) => this.#key(event));
		this.list.addEventListener("focusin", (event) => {
			const place = Number(event.target.closest("li")?.dataset.place);
			if (!Number.isNaN(place)) this.#activate(place);
		});
		this.onScroll = () => this.#soon();
		this.resized = new ResizeObserver(() => this.#measure());
	}

	start() {
		addEventListener("scroll", this.onScroll, { passive: true });
		this.resized.observe(this.list);
		this.#measure();
	}

	stop() {
		removeEventListener("scroll", this.onScroll);
		this.resized.disconnect();
		clearTimeout(this.timer);
		cancelAnimationFrame(this.frame);
	}

	#measure() {
		const width = this.list.clientWidth;
		if (!width) return;
		const wanted = width < 600 ? 110 : 190;
		this.gap = width < 600 ? 4 : 8;
		this.columns = Math.max(2, Math.round((width + this.gap) / (wanted + this.gap)));
		this.side = (width + this.gap) / this.columns - this.gap;
		for (const [place, cell] of this.cells) this.#put(cell, place);
		this.#draw();
	}

	#soon() {
		this.frame ??= requestAnimationFrame(() => {
			this.frame = null;
			this.#draw();
		});
	}

	#draw() {
		const { listing, columns } = this;
		if (!columns) return;
		const total = listing.total ?? 0;
		const row = this.side + this.gap;
		const most = Math.floor(TALLEST / row) * columns;
		const shown = Math.min(total, most);
		this.list.style.height = `${Math.max(0, Math.ceil(shown / columns) * row - this.gap)}px`;
		this.note.hidden = total <= most;
		this.note.textContent = `${count(total - shown)} more images are not shown here. Narrow the list with a filter, or search.`;

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
			let cell = this.cells.get(place);
			if (!cell) {
				cell = free.pop() ?? this.#make();
				this.cells.set(place, cell);
				this.#put(cell, place);
				if (!cell.isConnected) this.list.append(cell);
			}
			this.#fill(cell, place, fast);
		}
		for (const cell of free) cell.remove();
		clearTimeout(this.timer);
		if (fast) this.timer = setTimeout(() => this.#draw(), SETTLED);
		if (!listing.done && last + 2 * columns >= listing.images.length) {
			listing.reach(last + 4 * columns, () => this.#soon()).catch(this.failed);
		}
	}

	#make() {
		const img = h("img", { alt: "", draggable: "false", decoding: "async" });
		img.addEventListener("load", () => img.parentElement.classList.add("there"));
		img.addEventListener("error", () => img.parentElement.classList.add("missing"));
		return h("li", h("a.cell", { tabindex: "-1" }, img, h("span.name")));
	}

	#put(cell, place) {
		const row = this.side + this.gap;
		cell.style.width = cell.style.height = `${this.side}px`;
		cell.style.transform = `translate(${(place % this.columns) * row}px, ${Math.floor(place / this.columns) * row}px)`;
		cell.dataset.place = place;
		cell.setAttribute("aria-posinset", place + 1);
		cell.setAttribute("aria-setsize", this.listing.total ?? -1);
	}

	#fill(cell, place, fast) {
		const image = this.listing.images[place];
		const anchor = cell.firstChild;
		const [img, name] = anchor.children;
		anchor.tabIndex = place === this.active ? 0 : -1;
		if (cell.dataset.id !== image?.id) {
			anchor.classList.remove("there", "missing");
			unload(img);
			cell.dataset.id = image?.id ?? "";
			name.textContent = img.alt = image?.name ?? "";
			if (image) anchor.href = link({ view: "image", id: image.id });
			else anchor.removeAttribute("href");
		}
		if (image && !fast && !img.dataset.source) load(img, thumbnail(image.id, this.side));
	}

	#activate(place) {
		this.cells.get(this.active)?.firstChild.setAttribute("tabindex", "-1");
		this.active = place;
		this.cells.get(place)?.firstChild.setAttribute("tabindex", "0");
	}

	/** Arrow keys move the focus; the grid has one stop for Tab. */
	#key(event) {
		const screen = Math.max(1, Math.floor(innerHeight / (this.side + this.gap)) - 1) * this.columns;
		const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, PageUp: -screen, PageDown: screen, Home: -Infinity, End: Infinity };
		const step = steps[event.key];
		if (step === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
		event.preventDefault();
		this.focus(this.active + step);
	}

	focus(place) {
		const last = this.listing.images.length - 1;
		place = Math.min(last, Math.max(0, place));
		const top = this.list.getBoundingClientRect().top + scrollY + Math.floor(place / this.columns) * (this.side + this.gap);
		const header = document.querySelector(".top").offsetHeight;
		if (top - header - this.gap < scrollY) scrollTo(0, top - header - this.gap);
		else if (top + this.side + this.gap > scrollY + innerHeight) scrollTo(0, top + this.side + this.gap - innerHeight);
		this.#activate(place);
		this.#draw();
		this.cells.get(place)?.firstChild.focus({ preventScroll: true });
	}
}
