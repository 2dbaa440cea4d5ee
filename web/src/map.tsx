// The picture: two lands, the neck between them, who stands where, and a pulse for each request.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Frame, type Point, LABELLED, MAX_GATEWAYS, abreast, field, frame, land, link, places, way } from "./coast";
import { onRequest, useKnown } from "./live";
import { outcome, took } from "./pieces";
import type { Known } from "./live";
import type { Site, Story } from "./types";
import { roundTrip } from "./vitals";

const MAX_CALLERS = 5;
const PULSE_MS = 1400;

interface Scene {
  callers: string[];
  gateways: string[];
  sites: Site[];
}

/** Who is in the picture. */
export function scene(known: Known): Scene {
  const sites = known.sites ?? [];
  const gateways = new Set(known.gateway ? [known.gateway.name] : []);
  for (const site of sites) for (const link of site.links) gateways.add(link.gateway);
  const callers = new Set((known.requests ?? []).map((story) => story.principal));
  // By name, so that nobody changes places when somebody else asks.
  return { callers: [...callers].slice(0, MAX_CALLERS).sort(), gateways: [...gateways].sort(), sites };
}

function useWide(): [boolean, { current: HTMLDivElement | null }] {
  const box = useRef<HTMLDivElement>(null);
  const [wide, setWide] = useState(true);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => setWide(element.clientWidth >= 760);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [wide, box];
}

export function Map() {
  const known = useKnown();
  const [wide, box] = useWide();
  const { callers, gateways, sites } = scene(known);
  const ghosts = callers.length === 0;
  const shownCallers = ghosts ? (wide ? ["kubectl", "tarbet", "gRPC"] : ["kubectl", "tarbet"]) : callers.slice(0, wide ? MAX_CALLERS : 3);
  const view = frame(wide, gateways.length, sites.length);
  const at = places(view, shownCallers.length, Math.max(1, gateways.length), sites.length);
  const shape = land(view);
  const gateway = (name: string) => at.gateways[Math.min(Math.max(0, gateways.indexOf(name)), MAX_GATEWAYS - 1)];
  const many = sites.length > LABELLED;
  const edges = many
    ? gateways
        .filter((name) => sites.some((site) => site.links.some((held) => held.gateway === name)))
        .map((name) => ({ key: name, d: way(view, gateway(name) as Point, field(view)) }))
    : sites.flatMap((site, i) => {
        const holders = [...new Set(site.links.map((held) => held.gateway))];
        const to = at.sites[i] as Point;
        return holders.map((name) => ({ key: `${site.name}-${name}`, d: link(view, gateway(name) as Point, to, at.card) }));
      });
  const caller = { width: wide ? 150 : 90, height: 36 };
  const connected = sites.filter((site) => site.connected).length;
  const summary = `${connected} of ${sites.length} sites connected to ${gateways.length} ${gateways.length === 1 ? "gateway" : "gateways"}`;

  return (
    <div class={`map ${wide ? "wide" : "tall"}`} ref={box}>
      <svg viewBox={`0 0 ${view.width} ${view.height}`} role="img" aria-label={`Topology: ${summary}`}>
        <defs>
          <clipPath id="frame">
            <rect width={view.width} height={view.height} rx="14" />
          </clipPath>
          <path id="land" d={shape} />
          <clipPath id="on-land">
            <use href="#land" />
          </clipPath>
        </defs>
        <g clip-path="url(#frame)">
          <rect class="water" width={view.width} height={view.height} />
          <Waves view={view} />
          {[44, 28, 14].map((breadth, i) => (
            <use key={breadth} href="#land" class={`shallow depth-${i}`} stroke-width={breadth} />
          ))}
          <use href="#land" class="land" />
          <g clip-path="url(#on-land)">
            {[26, 12].map((breadth) => (
              <use key={breadth} href="#land" class="beach" stroke-width={breadth} />
            ))}
          </g>
          <use href="#land" class="coast" />
          <Legends view={view} />
          <g class="ways">
            {shownCallers.map((name, i) =>
              at.gateways.map((to, j) => (
                <path key={`${name}-${j}`} class="way public" d={way(view, edge(view, at.callers[i] as Point, caller), to)} />
              )),
            )}
            {edges.map(({ key, d }) => (
              <path key={key} class={`way link ${many ? "trunk" : ""}`} d={d} />
            ))}
          </g>
          <Pulses view={view} callers={shownCallers} at={at} gateway={gateway} sites={sites} />
          {shownCallers.map((name, i) => (
            <Box key={name} at={at.callers[i] as Point} {...caller} name={name} kind={ghosts ? "caller ghost" : "caller"} />
          ))}
          {(gateways.length ? gateways : ["gateway"]).slice(0, MAX_GATEWAYS).map((name, i) => {
            const more = gateways.length - MAX_GATEWAYS;
            const label = i === MAX_GATEWAYS - 1 && more > 0 ? `and ${more + 1} more` : name;
            return <Box key={name} at={at.gateways[i] as Point} width={wide ? 132 : abreast(gateways.length) - 12} height={44} name={label} note="gateway" kind="gateway" />;
          })}
          {at.card ? (
            sites.map((site, i) => <Card key={site.name} site={site} at={at.sites[i] as Point} size={at.card as { width: number; height: number }} />)
          ) : (
            <Dots sites={sites} at={at.sites} />
          )}
          {known.sites && sites.length === 0 ? <NoSites view={view} /> : null}
        </g>
      </svg>
    </div>
  );
}

/** The side of a box that faces the neck. */
const edge = (view: Frame, at: Point, { width, height }: { width: number; height: number }): Point =>
  view.wide ? { x: at.x + width / 2, y: at.y } : { x: at.x, y: at.y + height / 2 };

/** A few strokes of water, away from the neck. */
function Waves({ view }: { view: Frame }) {
  if (!view.wide) return null;
  const middle = view.width / 2 - 25;
  const rows = [58, 96, view.height - 96, view.height - 58];
  return (
    <g class="waves" aria-hidden="true">
      {rows.map((y, i) => {
        const x = middle + (i % 2 ? 26 : -22);
        return <path key={y} d={`M${x - 36} ${y}q9 -7 18 0t18 0t18 0t18 0`} />;
      })}
    </g>
  );
}

function Legends({ view }: { view: Frame }) {
  return view.wide ? (
    <g class="legends">
      <text x="28" y="40">PUBLIC SIDE</text>
      <text x={view.width - 28} y="40" text-anchor="end">PRIVATE SIDE</text>
      <text class="aside" x={view.width - 28} y={view.height - 22} text-anchor="end">agents dial out, nothing is opened</text>
      <text class="aside" x="28" y={view.height - 22}>callers</text>
    </g>
  ) : (
    <g class="legends">
      <text x="18" y="32">PUBLIC SIDE</text>
      <text x="18" y={view.height - 18}>PRIVATE SIDE</text>
    </g>
  );
}

interface BoxProps {
  at: Point;
  width: number;
  height: number;
  name: string;
  note?: string;
  kind: string;
}

function Box({ at, width, height, name, note, kind }: BoxProps) {
  return (
    <g class={`box ${kind}`} transform={`translate(${at.x - width / 2} ${at.y - height / 2})`}>
      <title>{name}</title>
      <rect width={width} height={height} rx="10" />
      <text x={width / 2} y={note ? height / 2 - 2 : height / 2 + 5} text-anchor="middle">
        {clip(name, Math.floor(width / 8.2))}
      </text>
      {note ? (
        <text class="note" x={width / 2} y={height / 2 + 14} text-anchor="middle">
          {note}
        </text>
      ) : null}
    </g>
  );
}

const clip = (text: string, most: number) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function Card({ site, at, size }: { site: Site; at: Point; size: { width: number; height: number } }) {
  const { width, height } = size;
  const services = [...new Set(site.links.flatMap((link) => link.services))];
  const time = roundTrip(site.links, useKnown());
  const offered = [...(time === undefined ? [] : [took(time)]), ...services].join(" · ") || "no services";
  const note = site.connected ? offered : "not connected";
  return (
    <a href={`#/sites/${encodeURIComponent(site.name)}`} class={`box site ${site.connected ? "on" : "off"}`} aria-label={`Site ${site.name}, ${note}`}>
      <g transform={`translate(${at.x - width / 2} ${at.y - height / 2})`}>
        <rect width={width} height={height} rx="10" />
        <circle class="lamp" cx="20" cy={height / 2} r={site.connected ? 5 : 4.5} />
        {height > 40 ? (
          <>
            <text x="36" y={height / 2 - 3}>{clip(site.name, Math.floor((width - 44) / 8.6))}</text>
            <text class="note" x="36" y={height / 2 + 14}>{clip(note, Math.floor((width - 44) / 6.4))}</text>
          </>
        ) : (
          <>
            <text x="36" y={height / 2 + 5}>{clip(site.name, 16)}</text>
            <text class="note" x={width - 14} y={height / 2 + 4} text-anchor="end">{clip(note, Math.floor((width - 64 - Math.min(16, site.name.length) * 9) / 6.6))}</text>
          </>
        )}
      </g>
    </a>
  );
}

function Dots({ sites, at }: { sites: Site[]; at: Point[] }) {
  const gap = at[1] && at[0] ? at[1].x - at[0].x : 20;
  // A thousand dots are drawn when a site changes, not with every number that ticks.
  return useMemo(() => (
    <g class="dots">
      {sites.map((site, i) => (
        <a key={site.name} href={`#/sites/${encodeURIComponent(site.name)}`} tabIndex={-1}>
          <circle class={site.connected ? "on" : "off"} cx={at[i]?.x} cy={at[i]?.y} r={Math.max(2, gap * 0.32)}>
            <title>{`${site.name}: ${site.connected ? "connected" : "not connected"}`}</title>
          </circle>
        </a>
      ))}
    </g>
  ), [sites, gap]);
}

function NoSites({ view }: { view: Frame }) {
  const [x, y] = view.wide ? [1000, view.height / 2] : [view.width / 2, 408];
  return (
    <g class="box site none">
      <rect x={x - 140} y={y - 36} width="280" height="72" rx="12" />
      <text x={x} y={y - 6} text-anchor="middle">No site yet</text>
      <text class="note mono" x={x} y={y + 16} text-anchor="middle">tarbet site add lab</text>
    </g>
  );
}

interface Pulse {
  key: string;
  paths: string[];
  bad: boolean;
}

interface PulsesProps {
  view: Frame;
  callers: string[];
  at: ReturnType<typeof places>;
  gateway: (name: string) => Point | undefined;
  sites: Site[];
}

/** A light that runs from the caller over the neck to the site, for each request that arrives. */
function Pulses(props: PulsesProps) {
  const [pulses, setPulses] = useState<Pulse[]>([]);
  const latest = useRef(props);
  latest.current = props;
  useEffect(
    () =>
      onRequest((story) => {
        // A moment later: whoever asks for the first time has a place in the picture by then.
        setTimeout(() => {
          const pulse = trace(story, latest.current);
          if (!pulse) return;
          setPulses((now) => [...now, pulse].slice(-24));
          setTimeout(() => setPulses((now) => now.filter((other) => other !== pulse)), PULSE_MS + 200);
        }, 80);
      }),
    [],
  );
  return (
    <g class="pulses" aria-hidden="true">
      {pulses.map((pulse) => (
        <circle key={pulse.key} class={pulse.bad ? "bad" : ""} r="6">
          <animateMotion ref={start} dur={`${PULSE_MS}ms`} begin="indefinite" fill="freeze" {...{ path: pulse.paths.join(" ") }} calcMode="spline" keyTimes="0;1" keySplines="0.4 0 0.3 1" />
        </circle>
      ))}
    </g>
  );
}

const start = (element: SVGAnimateMotionElement | null) => element?.beginElement();

function trace(story: Story, { view, callers, at, gateway, sites }: PulsesProps): Pulse | undefined {
  const site = sites.findIndex((known) => known.name === story.site);
  const entry = gateway(story.gateway);
  const target = at.sites[site];
  const from = at.callers[Math.max(0, callers.indexOf(story.principal))];
  if (!entry || !from) return undefined;
  const paths = [way(view, from, entry)];
  const held = sites[site]?.links.find((one) => one.gateway === story.gateway) ?? sites[site]?.links[0];
  const holder = held ? gateway(held.gateway) : undefined;
  if (holder && holder !== entry) paths.push(way(view, entry, holder).replace(/^M\S+ \S+ /, ""));
  const goal = at.card ? target : field(view);
  if (held && goal) paths.push(link(view, holder ?? entry, goal, at.card).replace(/^M\S+ \S+ /, ""));
  return { key: `${story.id}-${story.began}`, paths, bad: outcome(story).tone === "bad" };
}
