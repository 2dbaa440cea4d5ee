// The parts of this process and whether each does its work.

import { useKnown } from "./live";
import { Command, Empty, ProblemBox, State } from "./pieces";
import type { PartState } from "./types";

const tones = { ready: "good", failing: "bad", starting: "wait", draining: "wait" } as const;

const purposes: Record<string, string> = {
  gateway: "takes links and requests in",
  registry: "tells other gateways which links are here",
  store: "remembers sites, users and tokens",
  console: "shows this page",
  links: "this machine's own agent",
  "audit log": "writes down who asked for what",
  interlink: "takes pods in for the plugin",
  "plugin docker": "runs pods on Docker",
  "plugin docker runtime": "Docker itself",
  "plugin process": "runs pods as plain processes",
  "plugin process runtime": "the processes themselves",
  nets: "says who may talk to whom across clouds",
};

export function HealthView() {
  const { health, gateway, traffic, problems } = useKnown();
  const parts = Object.entries(health?.parts ?? {});
  return (
    <>
      <header class="view">
        <h1>Health</h1>
        {health ? <State tone={health.ready ? "good" : "bad"}>{health.ready ? "ready for work" : "not ready"}</State> : null}
      </header>
      {problems.health ? <ProblemBox problem={problems.health} /> : null}
      {health && parts.length === 0 ? <Empty title="This process has no parts yet.">{null}</Empty> : null}
      <ul class="parts">
        {parts.map(([name, part]) => (
          <Part key={name} name={name} part={part} />
        ))}
      </ul>
      <section aria-labelledby="numbers">
        <h2 id="numbers">Numbers</h2>
        <dl class="facts">
          <dt>version</dt>
          <dd>{gateway?.version ?? "–"}</dd>
          <dt>gateway</dt>
          <dd>{gateway?.name ?? "–"}</dd>
          <dt>agents dial</dt>
          <dd>{gateway ? <code>{gateway.agents}</code> : "–"}</dd>
          <dt>links held</dt>
          <dd>{traffic?.["tarbet_links"] ?? 0}</dd>
          <dt>links taken in</dt>
          <dd>{traffic?.["tarbet_links_opened_total"] ?? 0}</dd>
          <dt>agents turned away</dt>
          <dd>{traffic?.["tarbet_links_refused_total"] ?? 0}</dd>
          <dt>requests waiting for a site</dt>
          <dd>{traffic?.["tarbet_requests_waiting"] ?? 0}</dd>
        </dl>
        <p class="dim">All metrics, for Prometheus:</p>
        {gateway ? <Command>{`curl ${gateway.metrics}`}</Command> : null}
      </section>
    </>
  );
}

function Part({ name, part }: { name: string; part: PartState }) {
  return (
    <li>
      <State tone={tones[part.state]}>{part.state}</State>
      <strong>{name}</strong>
      <span class="dim">{"reason" in part ? part.reason : (purposes[name] ?? "")}</span>
    </li>
  );
}
