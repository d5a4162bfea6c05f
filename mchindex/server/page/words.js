// The search field, with the words that the service knows as suggestions.

import {get} from "./api.js";
import {$, h} from "./dom.js";
import {go} from "./route.js";

const WAIT = 80; // milliseconds after a key before suggestions are asked for

export function setUpWords() {
	const input = $("#words");
	const list = $("#suggestions");
	let timer;
	let asked = 0; // an answer to an older question is not shown
	let at = -1; // the suggestion that is chosen

	const show = words => {
		asked++;
		at = -1;
		input.removeAttribute("aria-activedescendant");
		input.ariaExpanded = words.length > 0;
		list.hidden = !words.length;
		list.replaceChildren(...words.map((word, i) => h("li", {role: "option", id: `word-${i}`, "aria-selected": "false", onpointerdown: e => (e.preventDefault(), submit(word))}, word)));
	};
	// Several things are separated by commas, and the last one is completed.
	const parts = () => /^((?:.*,)?\s*-?)(.*)$/s.exec(input.value).slice(1);
	const submit = word => {
		if (word) input.value = parts()[0] + word;
		clearTimeout(timer);
		show([]);
		const text = input.value.trim();
		go(text ? {view: "search", text} : {view: "library"});
	};
	const suggest = async () => {
		const word = parts()[1].trim();
		const mine = ++asked;
		const words = word ? await get("words", {q: word, limit: 8}).then(answer => answer.words, () => []) : [];
		if (mine === asked) show(words);
	};
	const move = to => {
		const {length} = list.children;
		at = (to + length) % length;
		[...list.children].forEach((option, i) => (option.ariaSelected = i === at));
		input.setAttribute("aria-activedescendant", `word-${at}`);
	};

	input.addEventListener("input", () => {
		clearTimeout(timer);
		timer = setTimeout(suggest, WAIT);
	});
	input.addEventListener("keydown", e => {
		if (e.key === "ArrowDown" && list.hidden) suggest();
		else if (list.hidden) return;
		else if (e.key === "ArrowDown") move(at + 1);
		else if (e.key === "ArrowUp") move(at < 0 ? -1 : at - 1);
		else if (e.key === "Enter") submit(list.children[at]?.textContent);
		else if (e.key === "Escape") show([]);
		else return;
		e.preventDefault();
	});
	input.addEventListener("blur", () => show([]));
	addEventListener("popstate", () => show([]));
	$("#find").addEventListener("submit", e => {
		e.preventDefault();
		submit();
	});
}
