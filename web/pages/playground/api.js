// The service as this page calls it: its address, the caller's key, and errors that say what is wrong.

import { eventData } from "./events.js";

/** Where the service is, also behind a proxy that puts a path before it. Ends with a slash. */
export const BASE = new URL("..", import.meta.url);

let key = "";

export const hasKey = () => key !== "";

/** Kept here and nowhere else. */
export function useKey(value) {
  key = value.trim();
}

export class ApiError extends Error {
  /**
   * @param {{status?: number, param?: string | null, requestId?: string | null, retryAfter?: string | null}} facts
   *   `param` is the field at fault.
   */
  constructor(message, facts = {}) {
    super(message);
    Object.assign(this, { status: 0, param: null, requestId: null, retryAfter: null }, facts);
  }
}

export async function getJson(path) {
  const response = await call(path);
  try {
    return await response.json();
  } catch {
    throw new ApiError("What answers here is not the service."); // some proxy, say
  }
}

/** The events of a streamed answer; ends after the last one, or throws an ApiError or an AbortError. */
export async function* stream(path, body, signal) {
  const response = await call(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const requestId = response.headers.get("x-request-id");
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, { param: event.error.param, requestId });
      yield event;
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    throw new ApiError("The connection broke before the answer was complete.", { requestId });
  }
  throw new ApiError("The connection ended before the answer was complete.", { requestId });
}

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${asHeader(key)}`;
  let response;
  try {
    response = await fetch(new URL(path, BASE), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The service cannot be reached.");
  }
  if (response.ok) return response;
  throw await refusal(response);
}

async function refusal(response) {
  // On /v1 an error is an object unless the service is set to TGI's form, elsewhere it is a text.
  const body = await response.json().catch(() => ({}));
  const error = body.error ?? {};
  return new ApiError(error.message ?? (typeof body.error === "string" ? body.error : `The service answered ${response.status}.`), {
    status: response.status,
    param: error.param,
    requestId: response.headers.get("x-request-id"),
    retryAfter: response.headers.get("retry-after"),
  });
}

/** Headers carry bytes; fetch wants each as one character. */
const asHeader = (text) => String.fromCharCode(...new TextEncoder().encode(text));
