// Pictures that were searched with. The service keeps none: their codes are in the address, and a small copy
// stays in this tab, to be shown after a reload.

import {h} from "./dom.js";

const SIDE = 512;
const KEPT = 8;
const files = new Map(); // by codes

export async function keep(codes, file) {
	files.set(codes, file);
	try {
		const bitmap = await createImageBitmap(file);
		const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
		const canvas = h("canvas", {width: Math.ceil(bitmap.width * scale), height: Math.ceil(bitmap.height * scale)});
		canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
		const [, data] = canvas.toDataURL("image/jpeg").split(",");
		const others = stored().filter(([each]) => each !== codes);
		sessionStorage.setItem("pictures", JSON.stringify([[codes, data], ...others].slice(0, KEPT)));
	} catch {
		// The browser cannot show it (HEIC), or its storage is full. The search works without it.
	}
}

/** The picture of a search by codes; nothing if this tab does not have it. */
export function kept(codes) {
	const found = stored().find(([each]) => each === codes);
	if (found && !files.has(codes)) files.set(codes, new Blob([Uint8Array.from(atob(found[1]), letter => letter.charCodeAt(0))], {type: "image/jpeg"}));
	return files.get(codes);
}

const stored = () => JSON.parse(sessionStorage.getItem("pictures") ?? "[]");
