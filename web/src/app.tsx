// The frame: navigation, theme, the lock, and the view that the address names.

import "./app.css";
import { render } from "preact";
import { useEffect, useReducer, useRef, useState } from "preact/hooks";
import { Refused, lock, unlock, unlockedAs } from "./actions";
import { Audit } from "./audit";
import { Codes } from "./codes";
import { Meshes } from "./federation";
import { HealthView } from "./health";
import { Jobs } from "./jobs";
import { open, useKnown } from "./live";
import { Networks } from "./networks";
import { Overview } from "./overview";
import { Dialog, ProblemBox, State } from "./pieces";
import { Pods } from "./pods";
import { Requests } from "./requests";
import { SiteView } from "./site";
import { Sites } from "./sites";
import type { Problem } from "./types";

const views = [
  ["overview", "Overview"],
  ["sites", "Sites"],
  ["requests", "Requests"],
  ["jobs", "Jobs"],
  ["pods", "Pods"],
  ["networks", "Networks"],
  ["federation", "Federation"],
  ["audit", "Audit"],
  ["health", "Health"],
  ["codes", "Error codes"],
] as const;

function useRoute(): [string, string | undefined] {
  const read = () => location.hash.replace(/^#\/?/, "");
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const changed = () => setRoute(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const [view = "", detail] = route.split("/");
  return [view || "overview", detail ? decodeURIComponent(detail) : undefined];
}

function App() {
  const known = useKnown();
  const [view, detail] = useRoute();
  const [unlocking, setUnlocking] = useState(false);
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  useEffect(() => {
    const title = views.find(([id]) => id === view)?.[1] ?? "Tarbet";
    document.title = `${detail ?? title} · Tarbet`;
    // Whoever follows a link with the keyboard or a reader goes on in the new view.
    if (!first.current && view !== "codes") main.current?.focus({ preventScroll: true });
    first.current = false;
  }, [view, detail]);
  // On a narrow page the names of views are a strip, and the current one may lie beside it.
  useEffect(() => {
    const show = () => {
      const [strip, current] = [document.querySelector("nav"), document.querySelector("nav [aria-current]")];
      if (!strip || !current) return;
      const [whole, one] = [strip.getBoundingClientRect(), current.getBoundingClientRect()];
      strip.scrollLeft += one.left - whole.left - (whole.width - one.width) / 2;
    };
    show();
    addEventListener("resize", show);
    return () => removeEventListener("resize", show);
  }, [view]);
  const holder = unlockedAs();
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <header class="bar">
        <a class="mark" href="#/overview" aria-label="Tarbet, overview">
          <img src="/icon.svg" alt="" width="28" height="28" />
          <span>Tarbet</span>
        </a>
        <span class="grow" />
        <span aria-live="polite" class="connection">
          {known.connection === "open" ? <State tone="good">live</State> : known.connection === "lost" ? <State tone="bad">reconnecting</State> : <State tone="wait">connecting</State>}
        </span>
        <Theme />
        {holder ? (
          <button type="button" onClick={() => (lock(), redraw(undefined))} title="Forget the token">
            {holder} · lock
          </button>
        ) : (
          <button type="button" onClick={() => setUnlocking(true)}>
            Unlock
          </button>
        )}
      </header>
      <div class="body">
        <nav aria-label="Views">
          {views.map(([id, name]) => (
            <a key={id} href={`#/${id}`} aria-current={id === view ? "page" : undefined}>
              {name}
            </a>
          ))}
          <span class="grow" />
          <span class="version dim">{known.gateway ? `${known.gateway.name} · ${known.gateway.version}` : ""}</span>
        </nav>
        <main id="main" tabIndex={-1} ref={main}>
          {view === "overview" ? <Overview /> : null}
          {view === "sites" && !detail ? <Sites /> : null}
          {view === "sites" && detail ? <SiteView name={detail} onUnlock={() => setUnlocking(true)} /> : null}
          {view === "requests" ? <Requests id={detail} /> : null}
          {view === "jobs" ? <Jobs onUnlock={() => setUnlocking(true)} /> : null}
          {view === "pods" ? <Pods uid={detail} /> : null}
          {view === "networks" ? <Networks chosen={detail} onUnlock={() => setUnlocking(true)} /> : null}
          {view === "federation" ? <Meshes /> : null}
          {view === "audit" ? <Audit /> : null}
          {view === "health" ? <HealthView /> : null}
          {view === "codes" ? <Codes chosen={detail} /> : null}
        </main>
      </div>
      {unlocking ? <Unlock onClose={() => setUnlocking(false)} /> : null}
    </>
  );
}

/** Light, dark, or as the system says. */
function Theme() {
  const names = ["auto", "light", "dark"] as const;
  const [theme, setTheme] = useState<(typeof names)[number]>("auto");
  useEffect(() => {
    document.documentElement.dataset["theme"] = theme;
  }, [theme]);
  const next = names[(names.indexOf(theme) + 1) % names.length] ?? "auto";
  return (
    <button type="button" class="quiet theme" onClick={() => setTheme(next)} aria-label={`Theme: ${theme}. Change to ${next}`}>
      {theme === "auto" ? "◐ auto" : theme === "light" ? "○ light" : "● dark"}
    </button>
  );
}

function Unlock({ onClose }: { onClose: () => void }) {
  const { gateway } = useKnown();
  const [pasted, setPasted] = useState("");
  const [problem, setProblem] = useState<Problem>();
  const submit = async (event: Event) => {
    event.preventDefault();
    try {
      await unlock(pasted.trim());
      onClose();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setProblem(error.problem);
    }
  };
  return (
    <Dialog title="Unlock" onClose={onClose}>
      <form onSubmit={submit}>
        <p>
          Paste a token. It stays in the memory of this page until you lock it or close it.
          {gateway ? (
            <span class="dim"> The administrator's is in {gateway.tokenFile}.</span>
          ) : null}
        </p>
        <label>
          Token
          <input type="password" autocomplete="off" spellcheck={false} required value={pasted} onInput={(event) => setPasted(event.currentTarget.value)} />
        </label>
        {problem ? <ProblemBox problem={problem} /> : null}
        <div class="choices">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Unlock
          </button>
        </div>
      </form>
    </Dialog>
  );
}

open();
const root = document.getElementById("app");
if (root) render(<App />, root);
