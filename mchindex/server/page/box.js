// Choosing a part of a picture: with the mouse on any picture, with a finger or the keyboard after
// "Choose a part". Boxes are fractions of the picture: [x0, y0, x1, y1].

import { h, icon, say } from "./dom.js";

const SMALLEST = 0.04; // of a side
const DRAG = 6; // pixels that a mouse moves before a click becomes a drag

/** Puts an outlined box over a picture. */
export function place(element, [x0, y0, x1, y1]) {
	element.style.left = `${x0 * 100}%`;
	element.style.top = `${y0 * 100}%`;
	element.style.width = `${(x1 - x0) * 100}%`;
	element.style.height = `${(y1 - y0) * 100}%`;
	return element;
}

export const outline = (box, kind = "") => place(h("span", { class: `outline ${kind}`, "aria-hidden": "true" }), box);

/** Whether a box is nearly the whole picture, which needs no outline. */
export const isWhole = (box) => !box || (box[2] - box[0]) * (box[3] - box[1]) > 0.97;

/** A box in pixels of a picture, and back. */
export const pixels = ([x0, y0, x1, y1], { width, height }) => [x0 * width, y0 * height, x1 * width, y1 * height].map(Math.round);
export const shares = ([x0, y0, x1, y1], { width, height }) => [x0 / width, y0 / height, x1 / width, y1 / height];

const rounded = (box) => box.map((side) => Math.round(side * 1000) / 1000);
const between = (low, value, high) => Math.min(high, Math.max(low, value));

let open = null; // the one that is being used

/**
 * Lets people choose a part of the picture in `frame`. `actions` are [label, function of the box], and the
 * first of them is what Enter does.
 */
export class PartChooser {
	constructor(frame, actions) {
		this.frame = frame;
		this.actions = actions;
		this.box = null;
		frame.addEventListener("pointerdown", (event) => this.#down(event));
		frame.addEventListener("dragstart", (event) => event.preventDefault());
		frame.addEventListener("click", (event) => {
			if (this.dragged || this.picking) event.preventDefault();
			this.dragged = false;
		}, true);
	}

	#down(event) {
		if (!this.actions.length || event.button !== 0 || !event.isPrimary || event.target.closest("button")) return;
		if (event.pointerType !== "mouse" && !this.picking) return; // a finger scrolls
		const edge = event.target.dataset?.edge;
		const moving = event.target === this.element;
		const area = this.frame.getBoundingClientRect();
		const at = (e) => [between(0, (e.clientX - area.left) / area.width, 1), between(0, (e.clientY - area.top) / area.height, 1)];
		const start = at(event);
		const before = this.box;
		this.dragged = false;
		const move = (e) => {
			if (!this.dragged && Math.hypot(e.clientX - event.clientX, e.clientY - event.clientY) < DRAG) return;
			this.dragged = true;
			const [x, y] = at(e);
			if (edge) this.#set([before[0], before[1], Math.max(before[0] + SMALLEST, x), Math.max(before[1] + SMALLEST, y)]);
			else if (moving) this.#set(shifted(before, x - start[0], y - start[1]));
			else this.#set([Math.min(start[0], x), Math.min(start[1], y), Math.max(start[0], x), Math.max(start[1], y)]);
		};
		const up = (e) => {
			removeEventListener("pointermove", move);
			removeEventListener("pointerup", up);
			removeEventListener("pointercancel", up);
			if (!this.dragged) return;
			if (e.type === "pointerup") setTimeout(() => (this.dragged = false)); // after the click that follows
			const [x0, y0, x1, y1] = this.box;
			if (x1 - x0 < SMALLEST || y1 - y0 < SMALLEST) this.close();
			else this.#finish();
		};
		addEventListener("pointermove", move);
		addEventListener("pointerup", up);
		addEventListener("pointercancel", up);
	}

	/** Starts with a box in the middle, for the keyboard and for fingers. */
	begin(box = [0.25, 0.25, 0.75, 0.75]) {
		if (!this.actions.length) return;
		this.#set(box);
		this.#finish();
		this.element.focus({ preventScroll: true });
		say("A part is chosen. Arrow keys move it, with Shift they resize it, Enter searches, Escape stops.");
	}

	#set(box) {
		if (open !== this) open?.close();
		open = this;
		if (!this.element) {
			this.element = h("div.chosen", { tabindex: "0", role: "group", "aria-label": "Chosen part. Arrow keys move it, with Shift they resize it, Enter searches.", onkeydown: (event) => this.#key(event) },
				h("span.corner", { "data-edge": "1" }),
			);
			this.frame.append(this.element);
			this.frame.classList.add("picking");
			this.picking = true;
		}
		this.box = box;
		place(this.element, box);
		if (this.bar) this.#placeBar();
	}

	#finish() {
		this.box = rounded(this.box);
		if (!this.bar) {
			const buttons = this.actions.map(([label, act], i) => h("button", { class: i ? "" : "primary", onclick: () => this.#act(act) }, label));
			const close = h("button.quiet", { "aria-label": "Stop choosing a part", onclick: () => this.close(true) }, icon("close"));
			this.bar = h("div.partbar", { role: "toolbar", "aria-label": "What to do with this part" }, buttons, close);
			this.bar.addEventListener("keydown", (event) => event.key === "Escape" && this.close(true));
			this.frame.after(this.bar);
		}
		this.#placeBar();
	}

	/** Below the box, or above it where the screen ends, and never beyond its sides. */
	#placeBar() {
		const { bar, frame } = this;
		const area = frame.getBoundingClientRect();
		const parent = bar.offsetParent?.getBoundingClientRect() ?? area;
		const [x0, y0, , y1] = this.box;
		const below = area.top + y1 * area.height + 8;
		const above = area.top + y0 * area.height - bar.offsetHeight - 8;
		const top = below + bar.offsetHeight < innerHeight || above < 0 ? below : above;
		const left = between(8, area.left + x0 * area.width, Math.max(8, document.documentElement.clientWidth - bar.offsetWidth - 8));
		bar.style.left = `${left - parent.left}px`;
		bar.style.top = `${top - parent.top}px`;
	}

	#act(act) {
		const box = this.box;
		this.close();
		act(box);
	}

	#key(event) {
		const by = { ArrowLeft: [-0.02, 0], ArrowRight: [0.02, 0], ArrowUp: [0, -0.02], ArrowDown: [0, 0.02] }[event.key];
		if (by) {
			const [x0, y0, x1, y1] = this.box;
			this.#set(event.shiftKey ? [x0, y0, between(x0 + SMALLEST, x1 + by[0], 1), between(y0 + SMALLEST, y1 + by[1], 1)] : shifted(this.box, ...by));
			this.box = rounded(this.box);
		} else if (event.key === "Enter") this.#act(this.actions[0][1]);
		else if (event.key === "Escape") this.close(true);
		else return;
		event.preventDefault();
		event.stopPropagation();
	}

	close(refocus = false) {
		if (open === this) open = null;
		this.element?.remove();
		this.bar?.remove();
		this.element = this.bar = this.box = null;
		this.picking = false;
		this.frame.classList.remove("picking");
		if (refocus) (this.frame.closest("a") ?? this.frame.querySelector("a") ?? this.opener)?.focus({ preventScroll: true });
	}
}

function shifted([x0, y0, x1, y1], dx, dy) {
	dx = between(-x0, dx, 1 - x1);
	dy = between(-y0, dy, 1 - y1);
	return [x0 + dx, y0 + dy, x1 + dx, y1 + dy];
}
