// What passed lately, and the story of one request hop by hop.

import { useState } from "preact/hooks";
import { requestsIn, useKnown } from "./live";
import { Command, Empty, ProblemBox, Since, State, firstTry, outcome, took, wanted } from "./pieces";
import { Table } from "./table";
import type { Story } from "./types";

export function Requests({ id }: { id: string | undefined }) {
  const { requests, sites, traffic, problems } = useKnown();
  const [onlyFailed, setOnlyFailed] = useState(false);
  const shown = (requests ?? []).filter((story) => !onlyFailed || outcome(story).tone === "bad");
  const chosen = requests?.find((story) => story.id === id);
  return (
    <>
      <header class="view">
        <h1>Requests</h1>
        <label class="check">
          <input type="checkbox" checked={onlyFailed} onChange={(event) => setOnlyFailed(event.currentTarget.checked)} /> only failed
        </label>
      </header>
      {problems.requests ? <ProblemBox problem={problems.requests} /> : null}
      <p class="dim">
        {requestsIn(traffic, "success").toLocaleString("en")} answered and {requestsIn(traffic, "failure").toLocaleString("en")} failed since the start; the newest are told here.
      </p>
      {id ? chosen ? <Told story={chosen} /> : <Forgotten id={id} /> : null}
      <Table
        columns={["Outcome", "Wants", "Site", "Caller", "Took", "When"]}
        rows={shown}
        row={(story) => <Row key={`${story.id}-${story.began}`} story={story} chosen={story.id === id} />}
      />
      {requests && !shown.length ? (
        <Empty title={onlyFailed ? "No request failed lately." : "No request has passed yet. The first could be:"}>
          {onlyFailed ? null : <Command>{firstTry(sites)}</Command>}
        </Empty>
      ) : null}
    </>
  );
}

function Row({ story, chosen }: { story: Story; chosen: boolean }) {
  const { tone, text } = outcome(story);
  const last = story.steps.at(-1);
  return (
    <tr aria-selected={chosen}>
      <th scope="row">
        <State tone={tone}>{text}</State>
      </th>
      <td data-name="Wants" class="wants">
        <a href={chosen ? "#/requests" : `#/requests/${story.id}`}>{wanted(story)}</a>
      </td>
      <td data-name="Site">
        <a href={`#/sites/${encodeURIComponent(story.site)}`}>{story.site}</a>
      </td>
      <td data-name="Caller">{story.principal}</td>
      <td data-name="Took">{last ? took(last.afterUs) : "–"}</td>
      <td data-name="When">
        <Since when={story.began} />
      </td>
    </tr>
  );
}

function Told({ story }: { story: Story }) {
  const end = Math.max(1, story.steps.at(-1)?.afterUs ?? 1);
  return (
    <section class="told" aria-labelledby="told">
      <h2 id="told">{wanted(story)}</h2>
      <p class="dim">
        <code>{story.id}</code> by {story.principal} at {story.gateway}
      </p>
      <ol class="steps">
        <li>
          <span class="when">0</span>
          <progress max={end} value={0} aria-hidden="true" />
          <span>came in at {story.gateway}</span>
        </li>
        {story.steps.map((step, i) => (
          <li key={i}>
            <span class="when">{took(step.afterUs)}</span>
            <progress max={end} value={step.afterUs} aria-hidden="true" />
            <span>{step.what}</span>
          </li>
        ))}
      </ol>
      <Command>{`tarbet why ${story.id}`}</Command>
    </section>
  );
}

function Forgotten({ id }: { id: string }) {
  return (
    <Empty title="This request is no longer among the newest.">
      <Command>{`tarbet why ${id}`}</Command>
    </Empty>
  );
}
