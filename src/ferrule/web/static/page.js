// The page is made by the server. This module replaces its parts when something changes, and nothing else.

const base = document.body.dataset.base;
const policy = window.trustedTypes?.createPolicy("ferrule", { createHTML: (text) => text });
const connection = document.getElementById("connection");

// -- parts ------------------------------------------------------------------------------------------------------------

function parse(text) {
  return new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, "text/html");
}

// The content of each live part as the server sent it: what has not changed is not touched.
const drawn = new WeakMap();

// Replace the content of an element; what the person has opened, typed or focused stays.
function replace(element, page) {
  const content = page.querySelector("main") ?? page.body; // an error is a whole page
  const html = content.innerHTML.trim();
  if (drawn.get(element) === html) return;
  drawn.set(element, html);
  const focused = document.activeElement;
  const held = element.contains(focused) ? focused : null;
  const typed = new Map();
  for (const input of element.querySelectorAll("input[id], textarea[id]")) {
    if (element.dataset.live && (input.value !== input.defaultValue || input.checked !== input.defaultChecked)) {
      typed.set(input.id, [input.value, input.checked]);
    }
  }
  const opened = [...element.querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...element.querySelectorAll("pre, .scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
  element.replaceChildren(...document.adoptNode(content).childNodes);
  if (element.dataset.live) {
    const details = [...element.querySelectorAll("details")];
    if (details.length === opened.length) details.forEach((one, index) => (one.open = opened[index]));
    element.querySelectorAll("pre, .scroll").forEach((one, index) => {
      [one.scrollLeft, one.scrollTop] = scrolled[index] ?? [0, 0];
    });
    for (const [id, [value, checked]] of typed) {
      const input = document.getElementById(id);
      if (input) [input.value, input.checked] = [value, checked];
    }
  }
  const same = held?.id && document.getElementById(held.id);
  same?.focus?.({ preventScroll: true });
  if (same && held.selectionStart != null) same.setSelectionRange?.(held.selectionStart, held.selectionEnd);
  dress(element);
}

async function load(address, options = {}) {
  const response = await fetch(address, { ...options, headers: { "x-ferrule-part": "1" }, redirect: "error" });
  if (response.status === 401) throw new Error("401");
  const isPage = response.headers.get("content-type")?.startsWith("text/html");
  return { text: await response.text(), isPage, ok: response.ok };
}

async function swap(form, address, name, value) {
  const place = form.closest("[data-swap]");
  const fields = new URLSearchParams(new FormData(form));
  if (name) fields.set(name, value);
  try {
    const { text, isPage } = await load(address, { method: "POST", body: fields });
    if (isPage) replace(place, parse(text));
  } catch (error) {
    tell(error);
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-swap-to]");
  if (button) {
    event.preventDefault();
    swap(button.form, button.dataset.swapTo, button.name, button.value);
  }
  const copied = event.target.closest("[data-copy]");
  if (copied) {
    navigator.clipboard.writeText(document.getElementById(copied.dataset.copy).textContent);
    copied.textContent = "Copied";
  }
});

document.addEventListener("change", async (event) => {
  const input = event.target;
  if (input.matches("select[data-swap-to], input[data-swap-to]")) {
    if (input.dataset.swapTo) swap(input.form, input.dataset.swapTo);
  } else if (input.form?.dataset.get) {
    const query = new URLSearchParams(new FormData(input.form));
    try {
      const { text } = await load(`${input.form.dataset.get}?${query}`);
      replace(input.closest("[data-swap]"), parse(text));
    } catch (error) {
      tell(error);
    }
  } else if (input.form && "submit" in input.form.dataset) {
    input.form.submit();
  } else if (input.dataset.into && input.files[0]) {
    const reader = new FileReader();
    reader.onload = () => (document.getElementById(input.dataset.into).value = reader.result.split(",")[1] ?? "");
    reader.readAsDataURL(input.files[0]);
  }
});

// A form is sent once: a second click would call or answer again.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (event.target.method === "post" && button) setTimeout(() => (button.disabled = true));
});
window.addEventListener("pageshow", () => document.querySelectorAll("button:disabled").forEach((one) => (one.disabled = false)));

document.addEventListener("input", (event) => {
  const list = document.getElementById(event.target.dataset?.filter);
  if (!list) return;
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const item of list.children) {
    item.hidden = !words.every((word) => item.textContent.toLowerCase().includes(word));
  }
  document.querySelector("[data-nothing]").hidden = [...list.children].some((item) => !item.hidden);
});

// -- live -------------------------------------------------------------------------------------------------------------

let stream = null;
let failures = 0;
let timer = null;
const busy = new Set();
const again = new Set();

function say(text) {
  if (connection && connection.textContent !== text) connection.textContent = text;
  if (connection) connection.hidden = !text;
}

function tell(error) {
  say(
    error.message === "401"
      ? "Your session is over. Open the new link that the server printed; this page then goes on."
      : "The server does not answer. This page tries again by itself; nothing that you typed is lost.",
  );
}

async function refresh(element) {
  if (busy.has(element)) return again.add(element);
  busy.add(element);
  try {
    const { text, isPage, ok } = await load(element.dataset.live);
    if (isPage && ok) replace(element, parse(text));
  } finally {
    busy.delete(element);
    if (again.delete(element)) refresh(element);
  }
}

// Show the number of questions in the navigation, from the page of the approvals.
async function refreshCount() {
  const count = document.querySelector("[data-count]");
  if (!count || document.querySelector("[data-topic=questions]")) return;
  const { text } = await load(`${base}/approvals`);
  count.textContent = parse(text).querySelectorAll("article.ask").length || "";
}

function connect() {
  if (stream || document.hidden || !connection) return;
  const parts = [...document.querySelectorAll("[data-live]")].filter((part) => part.dataset.topic);
  const topics = new Set([...parts.map((part) => part.dataset.topic), "questions"]);
  stream = new EventSource(`${base}/events?${[...topics].map((one) => `topic=${encodeURIComponent(one)}`).join("&")}`);
  stream.onmessage = async (event) => {
    try {
      if (event.data === "questions") await refreshCount();
      const isStart = event.data === "open";
      const isNews = (part) => (isStart ? part.dataset.live : part.dataset.topic === event.data);
      await Promise.all(parts.filter((part) => part.isConnected && isNews(part)).map(refresh));
      failures = 0;
      say("");
    } catch (error) {
      tell(error);
    }
  };
  stream.onerror = async () => {
    disconnect();
    failures += 1;
    try {
      await load(`${base}/approvals`); // is it the server, or the session?
    } catch (error) {
      if (failures > 1 || error.message === "401") tell(error);
    }
    timer = setTimeout(connect, Math.min(500 * 2 ** failures, 8000));
  };
}

function disconnect() {
  clearTimeout(timer);
  stream?.close();
  stream = null;
}

// A page that nobody looks at asks for nothing.
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
window.addEventListener("pagehide", disconnect);

// -- times, and the link of the sign-in -------------------------------------------------------------------------------

function dress(root) {
  for (const time of root.querySelectorAll("[data-ago]")) {
    const seconds = Math.max(Date.now() / 1000 - Number(time.dataset.ago), 0);
    const [unit, size] = seconds < 90 ? ["second", 1] : seconds < 5400 ? ["minute", 60] : ["hour", 3600];
    time.title = time.textContent;
    time.textContent = new Intl.RelativeTimeFormat("en").format(-Math.round(seconds / size), unit);
  }
}

const signIn = document.querySelector("[data-sign-in]");
if (signIn && location.hash.length > 1) {
  signIn.elements.token.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  signIn.submit();
} else if (location.hash.length > 20) {
  history.replaceState(null, "", location.pathname + location.search); // a link that is not needed
}
for (const part of document.querySelectorAll("[data-live]")) drawn.set(part, part.innerHTML.trim());
dress(document);
connect();
