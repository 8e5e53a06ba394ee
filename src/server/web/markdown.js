// The part of Markdown that models write: headings, lists, quotations, tables, code, emphasis, and \boxed{} of answers.
// Links and images stay the text they are, so that an answer can neither load nor hide anything.

import { copyButton, element } from "./dom.js";

const FENCE = /^ {0,3}(```+|~~~+)\s*([^\s`]*).*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])\s*(\1\s*){2,}$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_INLINE = 20000; // characters of a line that is searched for spans: the search is quadratic
const MAX_DEPTH = 8; // of lists and quotations; deeper ones are text

export function renderMarkdown(text) {
  const made = document.createDocumentFragment();
  made.append(...blocks(text.split("\n"), 0));
  return made;
}

function blocks(lines, depth) {
  const made = [];
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    let match;
    if (line.trim() === "") {
      at += 1;
    } else if ((match = FENCE.exec(line))) {
      const end = fenceEnd(lines, at + 1, match[1]);
      made.push(codeBlock(lines.slice(at + 1, end).join("\n"), match[2]));
      at = end + 1;
    } else if ((match = HEADING.exec(line))) {
      made.push(element(`h${Math.min(match[1].length + 2, 6)}`, {}, ...inline(match[2])));
      at += 1;
    } else if (RULE.test(line)) {
      made.push(element("hr"));
      at += 1;
    } else if (QUOTE.test(line) && depth < MAX_DEPTH) {
      const end = endOf(lines, at, (next) => QUOTE.test(next));
      const inner = lines.slice(at, end).map((next) => QUOTE.exec(next)[1]);
      made.push(element("blockquote", {}, ...blocks(inner, depth + 1)));
      at = end;
    } else if (ITEM.test(line) && depth < MAX_DEPTH) {
      const [list, end] = listFrom(lines, at, depth);
      made.push(list);
      at = end;
    } else if (line.includes("|") && at + 1 < lines.length && isTableLine(lines[at + 1])) {
      const end = endOf(lines, at + 2, (next) => next.includes("|"));
      made.push(table(line, lines.slice(at + 2, end)));
      at = end;
    } else {
      const end = endOf(lines, at + 1, (next) => next.trim() !== "" && !startsBlock(next));
      made.push(paragraph(lines.slice(at, end)));
      at = end;
    }
  }
  return made;
}

const isTableLine = (line) => line.includes("-") && line.includes("|") && TABLE_LINE.test(line);
const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line);

function endOf(lines, from, belongs) {
  let end = from;
  while (end < lines.length && belongs(lines[end])) end += 1;
  return end;
}

// Without a closing fence the code goes on to the end: the answer may still be coming.
function fenceEnd(lines, from, fence) {
  return endOf(lines, from, (line) => !(line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === ""));
}

function codeBlock(code, language) {
  const head = element("div", { class: "code-head" }, element("span", {}, language), copyButton(() => code));
  return element("div", { class: "code-block" }, head, element("pre", { tabindex: "0" }, element("code", {}, code)));
}

function paragraph(lines) {
  const made = element("p");
  lines.forEach((line, i) => made.append(...(i > 0 ? [element("br")] : []), ...inline(line)));
  return made;
}

// Items of the same kind and indentation; what is indented more belongs to the item before it.
function listFrom(lines, from, depth) {
  const [, indent, marker] = ITEM.exec(lines[from]);
  const ordered = /\d/.test(marker);
  const list = element(ordered ? "ol" : "ul", ordered ? { start: parseInt(marker, 10) } : {});
  let at = from;
  while (at < lines.length) {
    const match = ITEM.exec(lines[at]);
    if (!match || match[1].length !== indent.length || /\d/.test(match[2]) !== ordered) break;
    const end = itemEnd(lines, at + 1, indent.length);
    const inner = lines.slice(at + 1, end).map((line) => line.slice(Math.min(leadingSpaces(line), indent.length + 2)));
    list.append(element("li", {}, ...inline(match[3]), ...blocks(inner, depth + 1)));
    at = end;
    // Items may stand apart.
    const next = endOf(lines, at, (line) => line.trim() === "");
    if (next < lines.length && ITEM.test(lines[next]) && leadingSpaces(lines[next]) === indent.length) at = next;
  }
  return [list, at];
}

// Blank lines belong to an item only where more of it follows.
function itemEnd(lines, from, indent) {
  const belongs = (line) => leadingSpaces(line) > indent || continues(line);
  let end = endOf(lines, from, belongs);
  for (;;) {
    const next = endOf(lines, end, (line) => line.trim() === "");
    if (next === end || next === lines.length || leadingSpaces(lines[next]) <= indent) return end;
    end = endOf(lines, next, belongs);
  }
}

const leadingSpaces = (line) => (line.trim() === "" ? 0 : line.length - line.trimStart().length);
const continues = (line) => line.trim() !== "" && !startsBlock(line) && leadingSpaces(line) > 0;

function table(head, rows) {
  const cells = (line) => line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((cell) => cell.trim());
  const row = (tag, line) => element("tr", {}, ...cells(line).map((cell) => element(tag, {}, ...inline(cell))));
  const body = element("tbody", {}, ...rows.map((line) => row("td", line)));
  const made = element("table", {}, element("thead", {}, row("th", head)), body);
  return element("div", { class: "table", tabindex: "0" }, made);
}

// What comes first in the text wins; code holds nothing else.
const SPANS = [
  [/(`+)(.+?)\1(?!`)/, (match) => element("code", {}, match[2].trim() || match[2])],
  [/\\boxed\{([^{}]*)\}/, (match) => element("span", { class: "boxed" }, match[1])],
  [/\*\*(?=\S)(.+?)(?<=\S)\*\*/, (match) => element("strong", {}, ...inline(match[1]))],
  [/(?<![\w*])\*(?=[^\s*])([^*]+?)(?<=\S)\*(?![\w*])/, (match) => element("em", {}, ...inline(match[1]))],
];

function inline(text) {
  if (text.length > MAX_INLINE) return [text];
  const made = [];
  let rest = text;
  while (rest !== "") {
    let first = null;
    for (const [pattern, make] of SPANS) {
      const match = pattern.exec(rest);
      if (match && (!first || match.index < first.match.index)) first = { match, make };
    }
    if (!first) break;
    const { match, make } = first;
    if (match.index > 0) made.push(rest.slice(0, match.index));
    made.push(make(match));
    rest = rest.slice(match.index + match[0].length);
  }
  if (rest !== "") made.push(rest);
  return made;
}
