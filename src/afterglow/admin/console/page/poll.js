// Asking again and again: sooner while all is well, later and later while nobody answers, never in a hidden tab.

const LONGEST_MS = 30_000;
const SHARE = 10; // an answer that took a second is not asked for again within ten

export class Poll {
  /**
   * @param work Asks once; throws where that failed.
   * @param everyMs How long to wait after an answer.
   * @param told Called with `{ error, againMs }` after each try; error is null where it went well.
   */
  constructor(work, everyMs, told) {
    this.work = work;
    this.everyMs = everyMs;
    this.told = told;
    this.failures = 0;
    this.timer = null;
    this.running = false;
    this.again = false;
    this.stopped = false;
    this.seen = () => (document.hidden ? this.pause() : this.now());
    document.addEventListener("visibilitychange", this.seen);
    this.now();
  }

  /** Ask at once; where an answer is on its way, it is to another question, and this one follows. */
  async now() {
    this.pause();
    if (this.running || this.stopped) {
      this.again = this.running;
      return;
    }
    this.running = true;
    this.again = false;
    const begun = performance.now();
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
    const took = performance.now() - begun;
    const wanted = error ? 1000 * 2 ** Math.min(this.failures - 1, 5) : Math.max(this.everyMs, SHARE * took);
    const againMs = this.again ? 0 : Math.min(wanted, LONGEST_MS);
    this.told({ error, againMs });
    const unknown = error?.status === 401; // asking for a token over and over would leave no peace
    if (!document.hidden && !unknown) this.timer = setTimeout(() => this.now(), againMs);
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  stop() {
    this.stopped = true;
    this.pause();
    document.removeEventListener("visibilitychange", this.seen);
  }
}
