// Pictures that were searched with but are not in the index. The service keeps none of them: it answers with
// their codes, which go into the address. A small copy stays in this tab, to be shown after a reload.

const SIDE = 512;
const KEPT = 8;
const files = new Map(); // by codes

export function keep(codes, file) {
	files.set(codes, file);
	small(file).then((data) => remember(codes, data)).catch(() => {}); // such as HEIC, which a browser cannot show
}

/** The picture of a search by codes, as a Blob; null if this tab never had it. */
export function kept(codes) {
	if (files.has(codes)) return files.get(codes);
	const found = stored().find(([each]) => each === codes);
	if (!found) return null;
	const [kind, text] = found[1].slice(5).split(";base64,");
	const file = new Blob([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], { type: kind });
	files.set(codes, file);
	return file;
}

async function small(file) {
	const bitmap = await createImageBitmap(file);
	const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
	const canvas = document.createElement("canvas");
	canvas.width = Math.max(1, Math.round(bitmap.width * scale));
	canvas.height = Math.max(1, Math.round(bitmap.height * scale));
	canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
	return canvas.toDataURL("image/jpeg", 0.85);
}

function stored() {
	try {
		return JSON.parse(sessionStorage.getItem("pictures") ?? "[]");
	} catch {
		return [];
	}
}

function remember(codes, data) {
	const list = [[codes, data], ...stored().filter(([each]) => each !== codes)].slice(0, KEPT);
	while (list.length) {
		try {
			sessionStorage.setItem("pictures", JSON.stringify(list));
			return;
		} catch {
			list.pop(); // no room: forget the oldest
		}
	}
}
