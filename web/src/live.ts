// What the page knows: the newest reading of each panel, and whether the stream is open.

import { useEffect, useReducer } from "preact/hooks";
import type { AuditLog, Code, Gateway, Health, JobList, Meshes, Nets, NodeList, PodList, Problem, Site, Story, Traffic, Vitals } from "./types";

export interface Known {
  connection: "opening" | "open" | "lost";
  gateway?: Gateway;
  codes?: Code[];
  sites?: Site[];
  /** How each link of this gateway is, by its id. */
  links?: Map<string, Vitals>;
  requests?: Story[];
  traffic?: Traffic;
  health?: Health;
  nets?: Nets;
  pods?: PodList;
  audit?: AuditLog;
  nodes?: NodeList;
  jobs?: JobList;
  federation?: Meshes;
  problems: Record<string, Problem>;
  /** Requests a second, newest last. */
  rates: number[];
}

export const known: Known = { connection: "opening", problems: {}, rates: Array<number>(60).fill(0) };

const watchers = new Set<() => void>();
const arrivals = new Set<(story: Story) => void>();
let queued = false;

/** Redraws at most once a frame, however much arrives; a hidden page draws when it is shown. */
function changed() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    for (const watcher of watchers) watcher();
  });
}

/** The known facts; the component is drawn again when they change. */
export function useKnown(): Known {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    const watcher = () => redraw(undefined);
    watchers.add(watcher);
    return () => void watchers.delete(watcher);
  }, []);
  return known;
}

/** Calls back for each request that comes in from now on. */
export function onRequest(callback: (story: Story) => void): () => void {
  arrivals.add(callback);
  return () => void arrivals.delete(callback);
}

const panels = ["sites", "links", "requests", "traffic", "health", "nets", "pods", "audit", "nodes", "jobs", "federation"] as const;
type Live = (typeof panels)[number];

function take(panel: Live, text: string) {
  const said = JSON.parse(text) as { value?: unknown; problem?: Problem };
  if (said.problem) known.problems[panel] = said.problem;
  else delete known.problems[panel];
  if (said.value !== undefined) {
    if (panel === "requests") announce(said.value as Story[]);
    const value = panel === "links" ? new Map((said.value as Vitals[]).map((one) => [one.id, one])) : said.value;
    Object.assign(known, { [panel]: value });
  }
  changed();
}

function announce(now: Story[]) {
  if (!known.requests) return;
  const before = new Set(known.requests.map((story) => story.id));
  // After a silence everything is new at once: a handful of pulses says as much as fifty.
  const fresh = now.filter((story) => !before.has(story.id)).slice(0, 8);
  for (const story of fresh) for (const arrival of arrivals) arrival(story);
}

export const requestsIn = (traffic: Traffic | undefined, outcome: string) =>
  traffic?.[`tarbet_requests_total{outcome="${outcome}"}`] ?? 0;

/** Once a second, how many requests came in since the last time. */
function measure() {
  let last: number | undefined;
  setInterval(() => {
    if (!known.traffic) return;
    const total = requestsIn(known.traffic, "success") + requestsIn(known.traffic, "failure");
    if (last !== undefined) known.rates = [...known.rates, Math.max(0, total - last)].slice(-60);
    last = total;
    changed();
  }, 1000);
}

async function fetched(panel: "gateway" | "codes") {
  const answer = await fetch(`/api/${panel}`);
  if (answer.ok) Object.assign(known, { [panel]: await answer.json() });
  changed();
}

export function open() {
  void fetched("gateway");
  void fetched("codes");
  measure();
  const stream = new EventSource("/api/events");
  stream.onopen = () => {
    known.connection = "open";
    changed();
  };
  // The browser tries again by itself.
  stream.onerror = () => {
    known.connection = "lost";
    changed();
  };
  for (const panel of panels) {
    stream.addEventListener(panel, (event) => take(panel, (event as MessageEvent<string>).data));
  }
}
