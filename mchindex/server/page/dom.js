// Small helpers to build the page. Text is only ever set as text, so names cannot become markup.

/** An element: h("a.big", {href: "#/"}, "text", child). Keys that start with "on" are listeners. */
export function h(name, ...rest) {
	const props = rest[0]?.constructor === Object ? rest.shift() : {};
	const [tag, ...classes] = name.split(".");
	const element = document.createElement(tag);
	if (classes.length) element.className = classes.join(" ");
	if (tag === "button") element.type = "button";
	for (const [key, value] of Object.entries(props)) {
		if (value === undefined || value === null || value === false) continue;
		if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
		else if (["value", "checked", "disabled", "hidden"].includes(key)) element[key] = value;
		else element.setAttribute(key, value === true ? "" : value);
	}
	element.append(...rest.flat().filter((child) => child !== null && child !== undefined && child !== false));
	return element;
}

export function icon(name) {
	const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
	svg.setAttribute("class", "icon");
	svg.setAttribute("aria-hidden", "true");
	const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
	use.setAttribute("href", `assets/icon.svg#${name}`);
	svg.append(use);
	return svg;
}

export const $ = (selector, root = document) => root.querySelector(selector);

/** Tells a screen reader what has happened. */
export function say(text) {
	$("#said").textContent = text;
}

export const count = (n) => Number(n).toLocaleString("en");
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export function bytes(n) {
	const power = n < 1000 ? 0 : Math.min(3, Math.floor(Math.log10(n) / 3));
	return new Intl.NumberFormat("en", { style: "unit", unit: ["byte", "kilobyte", "megabyte", "gigabyte"][power], maximumSignificantDigits: 3 }).format(n / 1000 ** power);
}

/** A time of the server (seconds since 1970, or ISO text) as a date. */
export function date(value) {
	const time = new Date(typeof value === "number" ? value * 1000 : value);
	return Number.isNaN(time.getTime()) ? String(value) : time.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

export const milliseconds = (ms) => (ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** Opens the one dialog of the page with this content; resolves with the value it is closed with. */
export function ask(...content) {
	const dialog = $("#ask");
	dialog.replaceChildren(...content);
	const title = $("h2", dialog);
	title.id = "ask-title";
	dialog.setAttribute("aria-labelledby", "ask-title");
	dialog.returnValue = "";
	if (!dialog.open) dialog.showModal();
	return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

/** What is shown instead of pictures: a title, a sentence, and what can be done. */
export function state(title, text, ...actions) {
	return h("section.state", h("h1", title), ...[text].flat().map((line) => h("p", line)), actions.length ? h("p.actions", actions) : null);
}
