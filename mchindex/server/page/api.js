// Calls of the service. A key, if the service asks for one, is kept until the tab is closed.

import { h } from "./dom.js";

export class Problem extends Error {
	constructor(status, title, detail) {
		super(detail || title);
		this.status = status;
		this.title = title;
	}
}

/** The service does not answer at all. */
export class Gone extends Error {}

let key = sessionStorage.getItem("api-key") ?? "";
export const hasKey = () => key !== "";

// Set by app.js: asks a person for the key, shows that the service is gone, and that it is back.
export const hooks = { askKey: null, gone: () => {}, back: () => {} };

let asking = null;
async function newKey(refused) {
	asking ??= hooks.askKey(refused).finally(() => (asking = null));
	key = await asking;
	sessionStorage.setItem("api-key", key);
}

async function send(method, path, { json, form, signal, accept } = {}) {
	const headers = {};
	const used = key;
	if (key) headers["api-key"] = key;
	if (accept) headers.accept = accept;
	if (json !== undefined) headers["content-type"] = "application/json";
	let answer;
	try {
		answer = await fetch(path, { method, headers, body: json === undefined ? form : JSON.stringify(json), signal });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		hooks.gone();
		throw new Gone("The service does not answer.");
	}
	hooks.back();
	if (answer.status === 401) {
		// Another call may have got a new key while this one was under way.
		if (used === key) await newKey(used !== "");
		return send(method, path, { json, form, signal, accept });
	}
	if (!answer.ok) {
		let problem = {};
		try {
			problem = await answer.json();
		} catch {
			// Not JSON, so a proxy answered: its status must do.
		}
		throw new Problem(answer.status, problem.title ?? `Error ${answer.status}`, problem.detail);
	}
	return answer;
}

async function json(...call) {
	return (await send(...call)).json();
}

function path(name, query) {
	const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
	const text = new URLSearchParams(given.map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value]));
	return text.size ? `v1/${name}?${text}` : `v1/${name}`;
}

export const get = (name, query = {}, signal) => json("GET", path(name, query), { signal });
export const post = (name, body, signal) => json("POST", `v1/${name}`, { json: body, signal });
export const put = (name, body) => json("PUT", `v1/${name}`, { json: body });
export const remove = (name, body) => json("DELETE", `v1/${name}`, { json: body });
export const upload = (name, form, signal) => json("POST", `v1/${name}`, { form, signal });

/** Shows a picture in an <img>. A browser sends no key with an <img>, so with a key it is fetched. */
export function load(img, source) {
	img.dataset.source = source;
	if (!key) {
		img.src = source;
		return;
	}
	img.removeAttribute("src");
	send("GET", source, { accept: "image/webp,image/jpeg" })
		.then((answer) => answer.blob())
		.then((blob) => {
			if (img.dataset.source !== source) return; // the element shows another picture by now
			const url = URL.createObjectURL(blob);
			const free = () => URL.revokeObjectURL(url);
			img.addEventListener("load", free, { once: true });
			img.addEventListener("error", free, { once: true });
			img.src = url;
		})
		.catch(() => img.dispatchEvent(new Event("error")));
}

export function unload(img) {
	delete img.dataset.source;
	img.removeAttribute("src");
}

const SIZES = [64, 128, 256, 384, 512];

/** The address of a thumbnail for a place of `side` CSS pixels. */
export function thumbnail(id, side) {
	const wanted = side * Math.min(2, window.devicePixelRatio || 1);
	return path("thumbnail", { id, size: SIZES.find((size) => size >= wanted) ?? 512 });
}

export const picture = (id) => path("picture", { id });

/** An <img> of an image in the index. If its file is gone, its name is shown instead. */
export function image(id, name, side) {
	const img = h("img", { alt: name, draggable: "false", decoding: "async" });
	img.addEventListener("error", () => img.closest(".frame, .cell, .chip")?.classList.add("missing"));
	load(img, side ? thumbnail(id, side) : picture(id));
	return img;
}
