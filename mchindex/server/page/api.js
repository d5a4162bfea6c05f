// Calls of the service. A key, if the service asks for one, is kept until the tab is closed.

import {h} from "./dom.js";

// The service says what is wrong.
export class Problem extends Error {
	constructor(status, {detail}) {
		super(detail ?? `The server answered with error ${status}.`);
		this.status = status;
	}
}

// It does not answer at all.
export class Gone extends Error {}

// Set by app.js: asks a person for the key, shows that the service is gone, and that it is back.
export const hooks = {};

let key = sessionStorage.getItem("api-key");
let asking;

async function send(method, path, options = {}) {
	const {body, signal, accept = "application/json"} = options;
	const json = body && !(body instanceof FormData);
	const used = key;
	const headers = {accept};
	if (key) headers["api-key"] = key;
	if (json) headers["content-type"] = "application/json";
	let answer;
	try {
		answer = await fetch(`v1/${path}`, {method, headers, signal, body: json ? JSON.stringify(body) : body});
	} catch (error) {
		if (error.name === "AbortError") throw error;
		hooks.gone();
		throw new Gone();
	}
	hooks.back();
	if (answer.status === 401) {
		if (used === key) {
			// Nobody got a new key while this call was under way.
			asking ??= hooks.askKey(Boolean(used)).finally(() => (asking = null));
			key = await asking;
			sessionStorage.setItem("api-key", key);
		}
		return send(method, path, options);
	}
	// A proxy may answer with something else than JSON.
	if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
	return answer;
}

function path(name, query) {
	const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
	return `${name}?${new URLSearchParams(given.map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value]))}`;
}

const call = async (...of) => (await send(...of)).json();
export const get = (name, query = {}, signal) => call("GET", path(name, query), {signal});
export const post = (name, body, signal) => call("POST", name, {body, signal});
export const put = (name, body) => call("PUT", name, {body});
export const download = async (path, accept = "*/*") => (await send("GET", path, {accept})).blob();
export const remove = (name, body) => call("DELETE", name, {body});

/** Shows a picture in an <img>. A browser sends no key with an <img>, so with a key it is fetched. */
export function load(img, source) {
	img.dataset.source = source;
	if (!key) {
		img.src = `v1/${source}`;
		return;
	}
	download(source, "image/webp")
		.then(blob => img.dataset.source === source && showBlob(img, blob)) // or it shows another one by now
		.catch(() => img.dispatchEvent(new Event("error")));
}

export function showBlob(img, blob) {
	const url = URL.createObjectURL(blob);
	img.addEventListener("load", () => URL.revokeObjectURL(url), {once: true});
	img.src = url;
}

/** The source of a thumbnail for a place of `side` CSS pixels. */
export function thumbnail(id, side) {
	const wanted = side * Math.min(2, devicePixelRatio);
	return path("thumbnail", {id, size: [64, 128, 256, 384].find(size => size >= wanted) ?? 512});
}

export const picture = id => path("picture", {id});

/** An <img> of an image in the index, `side` CSS pixels large. */
export function image(id, name, side) {
	const img = h("img", {alt: name, draggable: "false", onerror: () => img.parentElement?.classList.add("missing")});
	load(img, thumbnail(id, side));
	return img;
}
