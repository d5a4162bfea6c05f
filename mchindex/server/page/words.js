// The search field, with the words that the service knows as suggestions.

import { get } from "./api.js";
import { $, h } from "./dom.js";
import { go } from "./route.js";

const WAIT = 80; // milliseconds after a key before suggestions are asked for

export function setUpWords() {
	const input = $("#words");
	const list = $("#suggestions");
	let timer;
	let asked = 0;
	let at = -1;

	const close = () => {
		list.hidden = true;
		list.replaceChildren();
		input.setAttribute("aria-expanded", "false");
		input.removeAttribute("aria-activedescendant");
		at = -1;
		asked++;
	};
	// Several things are separated by commas; the last one is completed.
	const parts = () => {
		const [, before, sign, word] = /^(.*,\s*|\s*)(-?)([^,]*)$/s.exec(input.value);
		return { before, sign, word: word.trim() };
	};
	const take = (word) => {
		const { before, sign } = parts();
		input.value = `${before}${sign}${word}`;
		close();
	};
	const move = (to) => {
		const options = [...list.children];
		if (!options.length) return;
		options[at]?.setAttribute("aria-selected", "false");
		at = (to + options.length) % options.length;
		options[at].setAttribute("aria-selected", "true");
		options[at].scrollIntoView({ block: "nearest" });
		input.setAttribute("aria-activedescendant", options[at].id);
	};
	const suggest = async () => {
		const { word } = parts();
		const mine = ++asked;
		if (!word) return close();
		const { words } = await get("words", { q: word, limit: 8 }).catch(() => ({ words: [] }));
		if (mine !== asked) return;
		const wanted = words.filter((each) => each.toLowerCase() !== word.toLowerCase());
		if (!wanted.length) return close();
		at = -1;
		input.removeAttribute("aria-activedescendant");
		list.replaceChildren(...wanted.map((each, i) => h("li", { role: "option", id: `word-${i}`, "aria-selected": "false", onpointerdown: (event) => (event.preventDefault(), take(each), submit()) }, each)));
		list.hidden = false;
		input.setAttribute("aria-expanded", "true");
	};
	const submit = () => {
		clearTimeout(timer);
		close();
		const text = input.value.trim();
		go(text ? { view: "search", text } : { view: "library" });
	};

	input.addEventListener("input", () => {
		clearTimeout(timer);
		timer = setTimeout(suggest, WAIT);
	});
	input.addEventListener("keydown", (event) => {
		if (event.key === "ArrowDown" || event.key === "ArrowUp") {
			if (list.hidden) suggest();
			else move(event.key === "ArrowDown" ? at + 1 : at < 0 ? -1 : at - 1);
		} else if (event.key === "Enter" && at >= 0) take(list.children[at].textContent), submit();
		else if (event.key === "Escape" && !list.hidden) close();
		else return;
		event.preventDefault();
	});
	input.addEventListener("blur", close);
	$("#find").addEventListener("submit", (event) => {
		event.preventDefault();
		submit();
	});
}
