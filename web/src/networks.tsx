// Networks: clouds as islands, what may pass as arrows, permit lists, and whether A can reach B.

import { useEffect, useRef, useState } from "preact/hooks";
import { deleteRule, get, unlockedAs } from "./actions";
import { useDeeds } from "./deeds";
import { type Arrow, type Card, arrows, islands } from "./islands";
import { useKnown } from "./live";
import { Command, Empty, ProblemBox, State, UnlockTo } from "./pieces";
import type { Foreign, Nets, Resource, Rule, Verdict } from "./types";

export function Networks({ chosen, onUnlock }: { chosen: string | undefined; onUnlock: () => void }) {
  const { nets, gateway, problems } = useKnown();
  if (gateway && !gateway.panels.includes("nets")) return <Elsewhere />;
  const resource = nets?.resources.find((known) => known.name === chosen);
  const note = gateway?.parts["nets"]?.split("  ")[1] ?? "";
  const planning = note.startsWith("planning only");
  return (
    <>
      <header class="view">
        <h1>Networks</h1>
        <span class="dim">{note}</span>
      </header>
      {problems.nets ? <ProblemBox problem={problems.nets} /> : null}
      {nets && nets.resources.length === 0 ? (
        <Empty title="No resource yet. Each begins with all traffic denied:">
          <Command>{`tarbet glide resource create ${nets.clouds[0] ?? "local"} web web.json${planning ? " --plan" : ""}`}</Command>
          <p class="dim">
            For a local cloud the description may be as short as {"{}"}.
            {planning ? " It is only planned, for machines and packet filters need root." : ""}
          </p>
        </Empty>
      ) : null}
      {nets?.resources.length ? <Picture nets={nets} chosen={chosen} /> : null}
      {nets?.resources.length ? (
        <div class="columns">
          {resource ? <Permits key={resource.name} resource={resource} onUnlock={onUnlock} /> : <Pick nets={nets} />}
          <Can nets={nets} />
        </div>
      ) : null}
      {nets?.links.length ? <Vpns nets={nets} /> : null}
      {nets?.networks?.length ? <Foreigners networks={nets.networks} /> : null}
    </>
  );
}

function Elsewhere() {
  return (
    <>
      <h1>Networks</h1>
      <Empty title="No orchestrator runs in this process. Start one beside it, or everything together:">
        <Command>tarbet nets</Command>
        <p class="dim">or</p>
        <Command>tarbet up</Command>
      </Empty>
    </>
  );
}

const href = (name: string) => `#/networks/${encodeURIComponent(name)}`;

/** Below this its words could not be read; above, it fits any page that is not narrow. */
const least = (width: number) => Math.min(Math.max(640, width * 0.66), 1100);

function Picture({ nets, chosen }: { nets: Nets; chosen: string | undefined }) {
  const drawn = islands(nets);
  const flows = arrows(nets, drawn.cards);
  const frame = useRef<HTMLDivElement>(null);
  // Where it is wider than the page, the middle is worth more than the shore.
  useEffect(() => {
    if (frame.current) frame.current.scrollLeft = (frame.current.scrollWidth - frame.current.clientWidth) / 2;
  }, [drawn.width]);
  return (
    <div ref={frame} class="map nets scroll-x" tabIndex={0} role="group" aria-label={`${nets.clouds.length} clouds, ${nets.resources.length} resources, ${nets.open} open flows`}>
      <svg viewBox={`0 0 ${drawn.width} ${drawn.height}`} style={{ minWidth: `${least(drawn.width)}px`, maxWidth: `${drawn.width * 1.15}px` }}>
        <defs>
          <marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
            <path class="tip" d="M0 0 L10 5 L0 10 z" />
          </marker>
        </defs>
        <rect class="water" width={drawn.width} height={drawn.height} rx="10" />
        {drawn.islands.map(({ name, x, y, width, height }) => (
          <g key={name}>
            <rect class="shallow depth-1" x={x} y={y} width={width} height={height} rx="40" stroke-width="26" />
            <rect class="shallow depth-2" x={x} y={y} width={width} height={height} rx="40" stroke-width="12" />
            <rect class="land coast" x={x} y={y} width={width} height={height} rx="40" />
            <g class="legends">
              <text x={x + 26} y={y + 36}>{name.toUpperCase()}</text>
            </g>
          </g>
        ))}
        {drawn.vpns.map(({ key, d, at, text }) => (
          <g key={key} class="vpn">
            <path class="outer" d={d} />
            <path class="inner" d={d} />
            <text x={at.x} y={at.y} text-anchor="middle">{text}</text>
          </g>
        ))}
        {[...drawn.cards.values()].map((card) => (
          <Box key={card.resource.name} card={card} chosen={card.resource.name === chosen} />
        ))}
        {flows.map((flow) => (
          <Flow key={flow.key} flow={flow} dimmed={chosen !== undefined && flow.from !== chosen && flow.to !== chosen} />
        ))}
      </svg>
    </div>
  );
}

function Box({ card, chosen }: { card: Card; chosen: boolean }) {
  const { resource, x, y, width, height } = card;
  const rules = resource.rules === 1 ? "1 rule" : `${resource.rules} rules`;
  return (
    <a href={chosen ? "#/networks" : href(resource.name)} class={`box site ${chosen ? "picked" : ""}`} aria-label={`${resource.name}, ${resource.ip}, ${rules}`}>
      <g transform={`translate(${x} ${y})`}>
        <rect width={width} height={height} rx="10" />
        <text x="14" y="21">{resource.name.length > 28 ? `${resource.name.slice(0, 27)}…` : resource.name}</text>
        <text class="note" x="14" y="39">{`${resource.ip} · ${rules}`}</text>
      </g>
    </a>
  );
}

function Flow({ flow, dimmed }: { flow: Arrow; dimmed: boolean }) {
  return (
    <g class={`flow ${dimmed ? "dimmed" : ""}`}>
      <title>{`${flow.from} may open ${flow.text} to ${flow.to}`}</title>
      <path d={flow.d} marker-end="url(#tip)" />
      <rect x={flow.at.x - flow.breadth / 2} y={flow.at.y - 11} width={flow.breadth} height="22" rx="11" />
      <text x={flow.at.x} y={flow.at.y + 4} text-anchor="middle">{flow.text}</text>
    </g>
  );
}

function Pick({ nets }: { nets: Nets }) {
  return (
    <section aria-labelledby="pick">
      <h2 id="pick">Permit lists</h2>
      <p class="dim">Choose a resource to see who may talk to it.</p>
      <ul class="list">
        {nets.resources.slice(0, 40).map((resource) => (
          <li key={resource.name}>
            <span class="dim">{resource.cloud}</span>
            <a href={href(resource.name)}>{resource.name}</a>
            <span class="dim">{resource.ip}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

const parts = (name: string) => {
  const [namespace = "", cloud = "", ...rest] = name.split(".");
  return { namespace, cloud, name: rest.join(".") };
};

export const pathOf = (name: string) => {
  const { namespace, cloud, name: short } = parts(name);
  return `namespaces/${encodeURIComponent(namespace)}/clouds/${encodeURIComponent(cloud)}/resources/${encodeURIComponent(short)}`;
};

const any = (number: number | undefined) => (number === undefined || number === -1 ? "any" : String(number));
const protocols: Record<number, string> = { 1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp" };

function Permits({ resource, onUnlock }: { resource: Resource; onUnlock: () => void }) {
  const [rules, setRules] = useState<Rule[]>();
  const { attempt, ask, dialog, refusal } = useDeeds();
  const load = async () => setRules((await get(`nets/${pathOf(resource.name)}/rules`)) as Rule[]);
  useEffect(() => void attempt(load), [resource.name, resource.rules]);
  const remove = (rule: string) =>
    ask({
      title: `Delete rule ${rule}?`,
      text: "What it permits is closed at once, also for connections that are open.",
      verb: "Delete",
      deed: async () => {
        await deleteRule(pathOf(resource.name), rule);
        await load();
      },
    });
  const short = parts(resource.name);
  return (
    <section aria-labelledby="permits">
      <h2 id="permits">Permit list of {resource.name}</h2>
      {refusal}
      {rules?.length === 0 ? (
        <Empty title="It has no rules: nothing may pass.">
          <Command>{`tarbet glide rule add ${short.cloud} ${short.name} --ping clients`}</Command>
        </Empty>
      ) : null}
      <ul class="list rules">
        {rules?.map((rule) => (
          <li key={rule.name}>
            <State tone={rule.direction ? "plain" : "good"}>{rule.direction ? "out to" : "in from"}</State>
            <span>
              <strong>{rule.tags?.join(", ")}</strong> <span class="dim">{protocols[rule.protocol ?? -1] ?? any(rule.protocol)} · port {any(rule.dst_port)} · rule {rule.name}</span>
              <br />
              <code class="dim">{rule.targets?.join(" ")}</code>
            </span>
            {unlockedAs() ? (
              <button type="button" onClick={() => remove(rule.name)} aria-label={`Delete rule ${rule.name}`}>
                Delete
              </button>
            ) : null}
          </li>
        ))}
      </ul>
      {rules?.length && !unlockedAs() ? (
        <UnlockTo onUnlock={onUnlock}>delete a rule</UnlockTo>
      ) : null}
      {dialog}
    </section>
  );
}

/** Can A reach B, and which rules say so. */
function Can({ nets }: { nets: Nets }) {
  const names = nets.resources.map((resource) => resource.name);
  // Until somebody chooses: the first two that are known by now.
  const [chosenFrom, setFrom] = useState<string>();
  const [chosenTo, setTo] = useState<string>();
  const from = chosenFrom ?? names[0] ?? "";
  const to = chosenTo ?? names.find((name) => name !== from) ?? from;
  const [port, setPort] = useState("443");
  const [protocol, setProtocol] = useState("6");
  const [verdict, setVerdict] = useState<Verdict>();
  const { attempt, refusal } = useDeeds();
  const ask = (event: Event) => {
    event.preventDefault();
    setVerdict(undefined);
    void attempt(async () => {
      const query = new URLSearchParams({ from, to, port: protocol === "1" ? "0" : port || "0", protocol });
      setVerdict((await get(`nets/can?${query}`)) as Verdict);
    });
  };
  return (
    <section aria-labelledby="can">
      <h2 id="can">Can A reach B?</h2>
      <form class="can" onSubmit={ask}>
        <label>
          From
          <input list="resources" required value={from} onInput={(event) => setFrom(event.currentTarget.value)} />
        </label>
        <label>
          To
          <input list="resources" required value={to} onInput={(event) => setTo(event.currentTarget.value)} />
        </label>
        <label>
          Protocol
          <select value={protocol} onChange={(event) => setProtocol(event.currentTarget.value)}>
            <option value="6">tcp</option>
            <option value="17">udp</option>
            <option value="1">icmp</option>
          </select>
        </label>
        <label>
          Port
          <input inputMode="numeric" pattern="[0-9]{0,5}" disabled={protocol === "1"} value={port} onInput={(event) => setPort(event.currentTarget.value)} />
        </label>
        <datalist id="resources">
          {names.slice(0, 200).map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
        <button type="submit" class="primary">
          Ask
        </button>
      </form>
      <div aria-live="polite" class="verdict">
        {refusal}
        {verdict ? (
          <>
            <p>
              <State tone={verdict.allowed ? "good" : "bad"}>{verdict.allowed ? "Yes, it may." : "No, it may not."}</State>
            </p>
            <ul class="list ends">
              {verdict.ends.map((end) => (
                <li key={end.direction}>
                  {end.rule ? <State tone="good">permits</State> : <State tone="bad">no rule</State>}
                  <span>
                    {end.resource} <span class="dim">{end.direction}{end.rule ? `, by rule ${end.rule}` : ""}</span>
                  </span>
                </li>
              ))}
            </ul>
          </>
        ) : null}
      </div>
    </section>
  );
}

/** Some networks have a space in each of forty regions. */
const spacesOf = ({ spaces }: Foreign) => (spaces.length > 4 ? `${spaces.slice(0, 3).join(", ")} and ${spaces.length - 3} more` : spaces.join(", "));

function Foreigners({ networks }: { networks: Foreign[] }) {
  return (
    <section aria-labelledby="foreign">
      <h2 id="foreign">Networks of others</h2>
      <p class="dim">Read-only: their addresses are given to nobody, and nothing is ever changed in them.</p>
      <ul class="list">
        {networks.map((network) => (
          <li key={`${network.cloud} ${network.id}`}>
            <span class="dim">{network.cloud}</span>
            <span>{network.name}</span>
            <span class="dim">{spacesOf(network)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Vpns({ nets }: { nets: Nets }) {
  return (
    <section aria-labelledby="vpns">
      <h2 id="vpns">Connections between clouds</h2>
      <ul class="list">
        {nets.links.map((link) => (
          <li key={link.name}>
            <State tone={link.complete ? "good" : "wait"}>{link.complete ? "complete" : "being made"}</State>
            <span>
              {link.from} ⇄ {link.to}
            </span>
            <span class="dim">{link.tunnels === 1 ? "1 tunnel" : `${link.tunnels} tunnels`}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
