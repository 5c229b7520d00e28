// Browsers refuse workers in pages opened from disk. There the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.appendChild(this.frame);
      const inner = this.frame.contentWindow;
      inner.document.open();
      inner.document.write(`<!doctype html><body><script>
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: done, onerror: failed });
          document.body.appendChild(script);
        })), Promise.resolve());
      </script><script src="${url}"></script>`);
      inner.document.close();
      this.ready = new Promise((done) => { inner.addEventListener("load", done, { once: true }); });
      // The worker's postMessage() is the frame's own: it must reach the page's listeners, not the frame's.
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() { this.frame.remove(); }
  };
}
