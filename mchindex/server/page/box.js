// Choosing a part of a picture: with the mouse at once, with a finger or the keyboard after "Choose a part".
// Boxes are [x0, y0, x1, y1] in shares of the sides; the service has them in pixels.

import {h, icon, say} from "./dom.js";

const SMALLEST = 0.04; // of a side
const DRAG = 6; // pixels that a mouse moves before a click becomes a drag
const STEP = 0.02; // of a side, by an arrow key

export const pixels = (box, {width, height}) => box.map((share, i) => Math.round(share * (i % 2 ? height : width)));
export const shares = (box, {width, height}) => box.map((side, i) => side / (i % 2 ? height : width));
const between = (low, value, high) => Math.min(high, Math.max(low, value));

/** Puts an element over a part of a picture. */
export function place(element, [x0, y0, x1, y1]) {
	const sides = {left: x0, top: y0, width: x1 - x0, height: y1 - y0};
	for (const [name, share] of Object.entries(sides)) element.style[name] = `${share * 100}%`;
	return element;
}

export const outline = box => place(h("span.outline"), box);

/** Whether a box is nearly the whole picture, which needs no outline. */
export const isWhole = ([x0, y0, x1, y1]) => (x1 - x0) * (y1 - y0) > 0.97;

function moved([x0, y0, x1, y1], dx, dy) {
	dx = between(-x0, dx, 1 - x1);
	dy = between(-y0, dy, 1 - y1);
	return [x0 + dx, y0 + dy, x1 + dx, y1 + dy];
}

const resized = ([x0, y0], x, y) => [x0, y0, between(x0 + SMALLEST, x, 1), between(y0 + SMALLEST, y, 1)];

let open = null; // the one that is being used

/** On the picture in `frame`. `actions` are [label, function of the box]; Enter does the first. `opener` gets the focus back. */
export class PartChooser {
	constructor(frame, actions, opener) {
		Object.assign(this, {frame, actions, opener});
		frame.addEventListener("pointerdown", e => this.#down(e));
		frame.addEventListener("dragstart", e => e.preventDefault());
		// The click at the end of a drag must not open the picture.
		frame.addEventListener("click", e => (this.dragged || this.element) && e.preventDefault(), true);
	}

	#down(start) {
		if (!this.actions.length || start.button || !start.isPrimary) return;
		if (start.pointerType !== "mouse" && !this.element) return; // a finger scrolls
		const area = this.frame.getBoundingClientRect();
		const at = e => [between(0, (e.clientX - area.left) / area.width, 1), between(0, (e.clientY - area.top) / area.height, 1)];
		const [x0, y0] = at(start);
		const before = this.box;
		const part = start.target.className; // of what is on the screen already
		const done = new AbortController();
		this.dragged = false;
		const move = e => {
			if (!this.dragged && Math.hypot(e.clientX - start.clientX, e.clientY - start.clientY) < DRAG) return;
			this.dragged = true;
			const [x, y] = at(e);
			if (part === "corner") this.#set(resized(before, x, y));
			else if (part === "chosen") this.#set(moved(before, x - x0, y - y0));
			else this.#set([Math.min(x0, x), Math.min(y0, y), Math.max(x0, x), Math.max(y0, y)]);
		};
		const up = () => {
			done.abort();
			if (!this.dragged) return;
			const [x0, y0, x1, y1] = this.box;
			if (Math.min(x1 - x0, y1 - y0) < SMALLEST) this.close();
			setTimeout(() => (this.dragged = false)); // after the click that follows
		};
		addEventListener("pointermove", move, done);
		addEventListener("pointerup", up, done);
		addEventListener("pointercancel", up, done);
	}

	/** Starts with a box in the middle, for the keyboard and for fingers. */
	begin(box = [0.25, 0.25, 0.75, 0.75]) {
		if (!this.actions.length) return;
		this.#set(box);
		this.element.focus({preventScroll: true});
		say("Arrow keys move the part, with Shift they resize it, Enter searches, Escape stops.");
	}

	#set(box) {
		if (open !== this) open?.close();
		open = this;
		this.box = box.map(side => Math.round(side * 1000) / 1000);
		if (!this.element) {
			const buttons = this.actions.map(([label, act], i) => h(i ? "button" : "button.primary", {onclick: () => this.#act(act)}, label));
			const close = h("button.quiet", {"aria-label": "Stop choosing a part", onclick: () => this.close(true)}, icon("close"));
			this.element = h("div.chosen", {tabindex: 0, role: "group", "aria-label": "Chosen part", onkeydown: e => this.#key(e)}, h("span.corner"));
			this.bar = h("div.partbar", {role: "toolbar", "aria-label": "What to do with this part", onkeydown: e => e.key === "Escape" && this.close(true)}, buttons, close);
			this.frame.append(this.element);
			this.frame.after(this.bar);
			this.frame.classList.add("picking");
		}
		place(this.element, this.box);
		// The buttons are below the box, or above it where the screen ends, and never beyond its sides.
		const {bar} = this;
		const area = this.element.getBoundingClientRect();
		const parent = bar.offsetParent.getBoundingClientRect();
		const above = area.top - bar.offsetHeight - 8;
		const top = area.bottom + 16 + bar.offsetHeight < innerHeight || above < 0 ? area.bottom + 12 : above;
		bar.style.top = `${top - parent.top}px`;
		bar.style.left = `${Math.max(8, Math.min(area.left, document.body.clientWidth - bar.offsetWidth - 8)) - parent.left}px`;
	}

	#act(act) {
		const {box} = this;
		this.close();
		act(box);
	}

	#key(e) {
		const by = {ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP]}[e.key];
		if (by && e.shiftKey) this.#set(resized(this.box, this.box[2] + by[0], this.box[3] + by[1]));
		else if (by) this.#set(moved(this.box, ...by));
		else if (e.key === "Enter") this.#act(this.actions[0][1]);
		else if (e.key === "Escape") this.close(true);
		else return;
		e.preventDefault();
	}

	close(refocus = false) {
		this.element?.remove();
		this.bar?.remove();
		this.frame.classList.remove("picking");
		open = this.element = this.bar = null;
		if (refocus) this.opener?.focus({preventScroll: true});
	}
}
