// Calls of the admin API. The token is stored for this tab only.

const TOKEN = "afterglow.token";
const TIMEOUT_MS = 20_000;

let ask = null;
let asking = null;

/** The broker refused a call, or did not answer. */
export class CallFailed extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }

  /** Whether the broker cannot be reached now; else it refused the call. */
  get silent() {
    return this.status === 0 || this.status >= 500;
  }
}

/** Set the function that prompts for a token: from the broker's reason to a promise of a token, or of null. */
export function askWith(asker) {
  ask = asker;
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
export const removeToken = () => sessionStorage.removeItem(TOKEN);

/**
 * Call the broker; returns the JSON of its answer, or null for an empty one.
 * @throws {CallFailed} with the broker's reason if it refused.
 */
export async function call(method, path, body) {
  for (;;) {
    const used = sessionStorage.getItem(TOKEN);
    const answer = await send(method, path, body, used);
    if (answer.status !== 401) return read(answer);
    const reason = await reasonOf(answer);
    // Another call may have got a token meanwhile: retry with that one.
    if (used === sessionStorage.getItem(TOKEN)) {
      asking ??= ask(reason).finally(() => (asking = null));
      const token = await asking;
      if (token === null) throw new CallFailed(401, reason);
      sessionStorage.setItem(TOKEN, token);
    }
  }
}

export const get = (path) => call("GET", path);

async function send(method, path, body, token) {
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(`/admin/v2/${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      redirect: "error",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new CallFailed(0, late ? `no answer within ${TIMEOUT_MS / 1000} s` : "the broker cannot be reached");
  }
}

async function read(answer) {
  if (!answer.ok) throw new CallFailed(answer.status, await reasonOf(answer));
  if (answer.status === 204) return null;
  try {
    return await answer.json();
  } catch {
    throw new CallFailed(0, "the answer is incomplete");
  }
}

async function reasonOf(answer) {
  try {
    return (await answer.json()).reason;
  } catch {
    return `status ${answer.status}`;
  }
}

/** The path of a topic, each segment encoded once. */
export function topicPath(topic, ...below) {
  const parts = topic.replace(/^persistent:\/\//, "").split("/");
  return ["persistent", ...parts, ...below].map(encodeURIComponent).join("/");
}
