// Search without a server: browsers start no worker from a file, so there the worker's script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.frame = frame.contentWindow
      this.frame.postMessage = data => {
        const message = new MessageEvent("message", { data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      }
      this.frame.importScripts = (...urls) => Promise.all(urls.map(each => this.load(each)))
      this.ready = this.load(url)
    }

    load(url) {
      const script = this.frame.document.createElement("script")
      script.src = url
      const loaded = new Promise(done => { script.onload = done })
      this.frame.document.body.append(script)
      return loaded
    }

    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
