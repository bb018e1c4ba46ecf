// Server-sent events read from a body: EventSource cannot send one.

/** The data of each event; comments, which keep a connection alive, are passed over. */
export async function* eventData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.map((line) => line.replace(/\r$/, ""))) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}
