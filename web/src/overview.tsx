// The first view: the picture, four numbers, what needs a hand, and what passed last.

import { requestsIn, useKnown } from "./live";
import { Map } from "./map";
import { Command, Empty, ProblemBox, Since, State, firstTry, outcome, wanted } from "./pieces";

const count = (number: number) => number.toLocaleString("en");

export function Overview() {
  const known = useKnown();
  const sites = known.sites ?? [];
  const connected = sites.filter((site) => site.connected).length;
  const links = sites.reduce((sum, site) => sum + site.links.length, 0);
  const [passed, failed] = [requestsIn(known.traffic, "success"), requestsIn(known.traffic, "failure")];
  const parts = Object.values(known.health?.parts ?? {});
  const ready = parts.filter((part) => part.state === "ready").length;
  const rate = known.rates.at(-1) ?? 0;
  return (
    <>
      <h1 class="hidden">Overview</h1>
      {Object.entries(known.problems).map(([panel, problem]) => (
        <ProblemBox key={panel} problem={problem} />
      ))}
      <Map />
      <div class="tiles">
        <Tile href="#/sites" value={known.sites ? count(connected) : "–"} of={known.sites ? count(sites.length) : undefined} name="sites connected" />
        <Tile href="#/sites" value={known.sites ? count(links) : "–"} name={links === 1 ? "link held" : "links held"} />
        <Tile href="#/requests" value={count(passed + failed)} name={`requests, ${count(failed)} failed · ${count(rate)}/s`}>
          <Spark rates={known.rates} />
        </Tile>
        <Tile href="#/health" value={known.health ? count(ready) : "–"} of={known.health ? count(parts.length) : undefined} name="parts ready" />
      </div>
      <div class="columns">
        <Attention />
        <Newest />
      </div>
    </>
  );
}

interface TileProps {
  href: string;
  value: string;
  of?: string | undefined;
  name: string;
  children?: preact.ComponentChildren;
}

function Tile({ href, value, of, name, children }: TileProps) {
  return (
    <a class="tile" href={href}>
      <span class="value">
        {value}
        {of === undefined ? null : <span class="of"> / {of}</span>}
      </span>
      <span class="name">{name}</span>
      {children}
    </a>
  );
}

/** The last minute as a line; none while nothing passes. */
function Spark({ rates }: { rates: number[] }) {
  if (!rates.some((rate) => rate > 0)) return null;
  const most = Math.max(...rates);
  const points = rates.map((rate, i) => `${120 - (rates.length - 1 - i) * 2} ${27 - (rate / most) * 24}`);
  return (
    <svg class="spark" viewBox="0 0 120 30" preserveAspectRatio="none" aria-hidden="true">
      {points.length > 1 ? <polyline points={points.join(", ")} /> : null}
    </svg>
  );
}

/** Nothing is known yet, so nothing is claimed. */
const Waiting = () => <p class="dim calm">Waiting for the gateway to tell.</p>;

function Attention() {
  const { sites, health, requests } = useKnown();
  const away = (sites ?? []).filter((site) => !site.connected);
  const ill = Object.entries(health?.parts ?? {}).filter(([, part]) => part.state !== "ready");
  const failed = (requests ?? []).filter((story) => outcome(story).tone === "bad").slice(0, 3);
  const calm = away.length + ill.length + failed.length === 0;
  return (
    <section aria-labelledby="attention">
      <h2 id="attention">Needs a hand</h2>
      {sites?.length === 0 ? (
        <Empty title="No site yet. A site is a place that dials in.">
          <Command>tarbet site add lab</Command>
        </Empty>
      ) : !sites || !health ? (
        <Waiting />
      ) : calm ? (
        <p class="calm">
          <State tone="good">Nothing. All sites are connected and all parts are ready.</State>
        </p>
      ) : (
        <ul class="list">
          {ill.map(([name, part]) => (
            <li key={name}>
              <State tone={part.state === "failing" ? "bad" : "wait"}>{part.state}</State>
              <a href="#/health">{name}</a>
              <span class="dim">{"reason" in part ? part.reason : ""}</span>
            </li>
          ))}
          {away.slice(0, 4).map((site) => (
            <li key={site.name}>
              <State tone="wait">away</State>
              <a href={`#/sites/${encodeURIComponent(site.name)}`}>{site.name}</a>
              <span class="dim">no agent is connected</span>
            </li>
          ))}
          {away.length > 4 ? (
            <li class="whole">
              <a href="#/sites">and {away.length - 4} more sites that are away</a>
            </li>
          ) : null}
          {failed.map((story) => (
            <li key={story.id}>
              <State tone="bad">{outcome(story).text}</State>
              <a href={`#/requests/${story.id}`}>{wanted(story)}</a>
              <span class="dim">
                {story.site}, <Since when={story.began} />
              </span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Newest() {
  const { requests, sites } = useKnown();
  return (
    <section aria-labelledby="newest">
      <h2 id="newest">Passed last</h2>
      {requests?.length ? (
        <ul class="list">
          {requests.slice(0, 6).map((story) => (
            <li key={story.id}>
              <State tone={outcome(story).tone}>{outcome(story).text}</State>
              <a href={`#/requests/${story.id}`}>{wanted(story)}</a>
              <span class="dim">
                {story.site}, <Since when={story.began} />
              </span>
            </li>
          ))}
        </ul>
      ) : !requests ? (
        <Waiting />
      ) : (
        <Empty title="No request has passed yet.">
          <Command>{firstTry(sites)}</Command>
        </Empty>
      )}
    </section>
  );
}
