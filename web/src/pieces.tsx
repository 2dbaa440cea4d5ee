// The small things that views share.

import type { ComponentChildren } from "preact";
import { useEffect, useReducer, useRef, useState } from "preact/hooks";
import type { Gateway, Problem, Site, Story } from "./types";

export type Tone = "good" | "bad" | "wait" | "plain";

/** A state in words, with a mark of its own shape: colour is never the only sign. */
export function State({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  const marks: Record<Tone, string> = { good: "●", bad: "▲", wait: "◐", plain: "○" };
  return (
    <span class={`state ${tone}`}>
      <span aria-hidden="true">{marks[tone]}</span> {children}
    </span>
  );
}

/** A sentence that was written for a terminal. */
export const plain = (text: string | undefined) => (text ?? "").replaceAll("`", "");

/** A command to type, with a button that copies it. */
export function Command({ children }: { children: string }) {
  const [copied, setCopied] = useState(false);
  const copy = () => {
    void navigator.clipboard?.writeText(children).then(() => setCopied(true));
  };
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 1600);
    return () => clearTimeout(timer);
  }, [copied]);
  return (
    <span class="command">
      <code tabIndex={0}>{children}</code>
      <button type="button" class="quiet" onClick={copy} aria-label={`Copy: ${children}`}>
        {copied ? "copied" : "copy"}
      </button>
    </span>
  );
}

/** Nothing to show yet, and the next command. */
export function Empty({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

export function ProblemBox({ problem }: { problem: Problem }) {
  return (
    <div class="problem" role="alert">
      <strong>
        {problem.code ? <a href={`#/codes/${problem.code}`}>{problem.code}</a> : null} {problem.message}
      </strong>
      <dl>
        <dt>where</dt>
        <dd>{problem.hop}</dd>
        <dt>why</dt>
        <dd>{problem.cause}</dd>
        <dt>try</dt>
        <dd>{problem.try}</dd>
      </dl>
    </div>
  );
}

/** Clusters that did not answer, beside what the others told. */
export function Away({ away }: { away: Problem[] | undefined }) {
  return (
    <>
      {(away ?? []).map((problem) => (
        <ProblemBox key={problem.hop} problem={problem} />
      ))}
    </>
  );
}

export function ago(when: string, now = Date.now()): string {
  const seconds = Math.max(0, Math.round((now - Date.parse(when)) / 1000));
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} days ago`;
}

/** How long ago; the exact time on hover. */
export function Since({ when }: { when: string }) {
  const [, again] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    const timer = setInterval(() => again(undefined), 5000);
    return () => clearInterval(timer);
  }, []);
  return (
    <time dateTime={when} title={new Date(when).toLocaleString()}>
      {ago(when)}
    </time>
  );
}

export function took(us: number): string {
  if (us < 1000) return `${us} µs`;
  if (us < 1_000_000) return `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms`;
  return `${(us / 1_000_000).toFixed(1)} s`;
}

/** How a request went, from the last step of its story. */
export function outcome(story: Story): { tone: Tone; text: string } {
  const last = story.steps.at(-1)?.what ?? "";
  const status = /^answered with (\d{3})/.exec(last)?.[1];
  if (status) return { tone: Number(status) < 400 ? "good" : "bad", text: status };
  const code = /^failed with (TB-\d{4})/.exec(last)?.[1];
  if (code) return { tone: "bad", text: code };
  if (last.startsWith("the stream is open")) return { tone: "good", text: "stream" };
  if (last.startsWith("the caller left")) return { tone: "plain", text: "left" };
  if (last.includes("waiting")) return { tone: "wait", text: "waits" };
  return { tone: "wait", text: "under way" };
}

/** What a request wants, in words: of what is sealed up to the agent a gateway sees no more than that. */
export const wanted = (story: Story) => (story.wants === "tls" ? "a sealed stream" : story.wants);

/** The native dialog: it keeps the focus inside and gives it back. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => element.current?.showModal(), []);
  return (
    <dialog ref={element} onClose={props.onClose} aria-labelledby="dialog-title">
      <h2 id="dialog-title">{props.title}</h2>
      {props.children}
    </dialog>
  );
}

/** For whoever only looks: what a token would be good for here. */
export function UnlockTo({ children, onUnlock }: { children: ComponentChildren; onUnlock: () => void }) {
  return (
    <p class="dim">
      <button type="button" onClick={onUnlock}>
        Unlock
      </button>{" "}
      to {children}.
    </p>
  );
}

/** A request that can be made now: through a site that is there, or else the way to one. */
export function firstTry(sites: Site[] | undefined): string {
  const offers = (service: string) => sites?.find((site) => site.connected && site.links.some((link) => link.services.includes(service)))?.name;
  const cluster = offers("kubernetes");
  if (cluster) return `tarbet kube login ${cluster} && kubectl --context ${cluster} get nodes`;
  return "tarbet site add lab";
}

/** How this process comes to serve a cluster: one that runs everything is started anew, and keeps what it knows. */
export const upWithCluster = (gateway: Gateway | undefined) =>
  `${gateway && Object.keys(gateway.parts).length ? "tarbet down --keep-state && " : ""}tarbet up --kubeconfig ~/.kube/config`;
