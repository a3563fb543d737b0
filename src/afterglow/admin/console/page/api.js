// Calls of the admin API. A token that was asked for is kept for this tab only.

const TOKEN = "afterglow.token";
const PATIENCE_MS = 20_000;

let ask = null;
let asking = null;

/** The broker said no, or nothing. */
export class CallFailed extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }

  /** Whether the broker cannot be reached, or not now; else it has understood, and refused. */
  get silent() {
    return this.status === 0 || this.status >= 500;
  }
}

/** Say who asks for a token: a function from the broker's reason to a promise of a token, or of null. */
export function askWith(asker) {
  ask = asker;
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
export const forgetToken = () => sessionStorage.removeItem(TOKEN);

/**
 * Call the broker; gives the JSON of its answer, or null where it has none.
 * @throws {CallFailed} with the broker's own reason where it refused.
 */
export async function call(method, path, body) {
  for (;;) {
    const used = sessionStorage.getItem(TOKEN);
    const answer = await send(method, path, body, used);
    if (answer.status !== 401) return read(answer);
    const reason = await reasonOf(answer);
    // Another call may have got a token meanwhile; then it is tried with that.
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
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new CallFailed(0, late ? `no answer within ${PATIENCE_MS / 1000} s` : "the broker cannot be reached");
  }
}

async function read(answer) {
  if (!answer.ok) throw new CallFailed(answer.status, await reasonOf(answer));
  if (answer.status === 204) return null;
  try {
    return await answer.json();
  } catch {
    throw new CallFailed(0, "the answer was cut short");
  }
}

async function reasonOf(answer) {
  try {
    return (await answer.json()).reason;
  } catch {
    return `status ${answer.status}`;
  }
}

/** The path of a topic, given as `tenant/namespace` and its own name, each part encoded once. */
export function topicPath(topic, ...below) {
  const parts = topic.replace(/^persistent:\/\//, "").split("/");
  return ["persistent", ...parts, ...below].map(encodeURIComponent).join("/");
}
