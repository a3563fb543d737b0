// Polling with exponential backoff on errors; paused in a hidden tab.

const MAX_WAIT_MS = 30_000;
const SHARE = 10; // after an answer that took 1 s, wait for at least 10 s

export class Poll {
  /**
   * @param work Makes the calls; throws if one fails.
   * @param everyMs Wait after an answer.
   * @param onResult Called with `{ error, againMs }` after each attempt; error is null on success.
   */
  constructor(work, everyMs, onResult) {
    this.work = work;
    this.everyMs = everyMs;
    this.onResult = onResult;
    this.failures = 0;
    this.timer = null;
    this.running = false;
    this.again = false;
    this.stopped = false;
    this.onVisibility = () => (document.hidden ? this.pause() : this.now());
    document.addEventListener("visibilitychange", this.onVisibility);
    this.now();
  }

  /** Poll now; if a poll is running, repeat it afterwards: its calls may be outdated. */
  async now() {
    this.pause();
    if (this.running || this.stopped) {
      this.again = this.running;
      return;
    }
    this.running = true;
    this.again = false;
    const started = performance.now();
    let error = null;
    try {
      await this.work();
      this.failures = 0;
    } catch (caught) {
      error = caught;
      this.failures += 1;
    }
    this.running = false;
    if (this.stopped) return;
    const took = performance.now() - started;
    const waitMs = error ? 1000 * 2 ** Math.min(this.failures - 1, 5) : Math.max(this.everyMs, SHARE * took);
    const againMs = this.again ? 0 : Math.min(waitMs, MAX_WAIT_MS);
    this.onResult({ error, againMs });
    const unauthenticated = error?.status === 401; // the user cancelled: do not prompt for a token again
    if (!document.hidden && !unauthenticated) this.timer = setTimeout(() => this.now(), againMs);
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  stop() {
    this.stopped = true;
    this.pause();
    document.removeEventListener("visibilitychange", this.onVisibility);
  }
}
