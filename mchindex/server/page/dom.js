// Small helpers to build the page. Text is only ever set as text, so names cannot become markup.

export const $ = (selector, root = document) => root.querySelector(selector);

/** An element: h("a.big", {href: "#/"}, "text", child). Keys that start with "on" are listeners. */
export function h(name, ...rest) {
	const props = rest[0]?.constructor === Object ? rest.shift() : {};
	const [tag, ...classes] = name.split(".");
	const element = document.createElement(tag);
	if (classes.length) element.className = classes.join(" ");
	if (tag === "button") element.type = "button";
	for (const [key, value] of Object.entries(props)) {
		if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
		else if (["value", "checked", "hidden"].includes(key)) element[key] = value;
		else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
	}
	element.append(...rest.flat().filter(child => child || child === 0));
	return element;
}

export function icon(name) {
	const [svg, use] = ["svg", "use"].map(tag => document.createElementNS("http://www.w3.org/2000/svg", tag));
	svg.setAttribute("class", "icon");
	svg.setAttribute("viewBox", "0 0 24 24");
	svg.setAttribute("aria-hidden", "true");
	use.setAttribute("href", `assets/icon.svg#${name}`);
	svg.append(use);
	return svg;
}

/** Tells a screen reader what has happened. */
export const say = text => ($("#said").textContent = text);

export const count = n => n.toLocaleString("en");
export const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;
export const date = text => new Date(text).toLocaleString([], {dateStyle: "medium", timeStyle: "short"});

export function bytes(n) {
	const power = n < 1000 ? 0 : Math.min(3, Math.floor(Math.log10(n) / 3));
	return `${Number((n / 1000 ** power).toPrecision(3))} ${["bytes", "kB", "MB", "GB"][power]}`;
}

/** Opens the one dialog of the page; resolves with the value of the button that closes it. */
export function ask(title, ...content) {
	const dialog = $("#ask");
	dialog.replaceChildren(h("h2", {id: "ask-title"}, title), ...content);
	dialog.returnValue = "";
	if (!dialog.open) dialog.showModal();
	return new Promise(resolve => dialog.addEventListener("close", () => resolve(dialog.returnValue), {once: true}));
}

/** What is shown instead of pictures: a title, a text, and what can be done. */
export function state(title, text, action) {
	return h("section.state", h("h1", title), h("p", text), action);
}
