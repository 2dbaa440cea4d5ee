// What changes something: asked for once more, tried with the token, and refused in plain words.

import { useState } from "preact/hooks";
import { Refused } from "./actions";
import { Dialog, ProblemBox } from "./pieces";
import type { Problem } from "./types";

interface Wish {
  title: string;
  /** What comes of it. */
  text: string;
  /** The word on the button that does it. */
  verb: string;
  deed: () => Promise<unknown>;
}

/** Something that may be refused, and what to show of that. */
export function useDeeds() {
  const [problem, setProblem] = useState<Problem>();
  const [wish, setWish] = useState<Wish>();
  const attempt = async (work: () => Promise<unknown>) => {
    setProblem(undefined);
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setProblem(error.problem);
    }
  };
  const close = () => setWish(undefined);
  const dialog = wish ? (
    <Dialog title={wish.title} onClose={close}>
      <p>{wish.text}</p>
      <div class="choices">
        <button type="button" onClick={close}>
          Keep it
        </button>
        <button type="button" class="danger" onClick={() => (close(), void attempt(wish.deed))}>
          {wish.verb}
        </button>
      </div>
    </Dialog>
  ) : null;
  return { attempt, ask: setWish, dialog, refusal: problem ? <ProblemBox problem={problem} /> : null };
}
