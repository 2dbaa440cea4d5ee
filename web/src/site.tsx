// One site: its links, how to connect it, and what may be done with a token.

import { useEffect, useState } from "preact/hooks";
import { removeSite, revokeToken, tokensOf, unlockedAs } from "./actions";
import { useDeeds } from "./deeds";
import { useKnown } from "./live";
import { Command, Empty, Since, State } from "./pieces";
import { Services } from "./sites";
import { Table } from "./table";
import type { Site, Token } from "./types";
import { Carried, LastPacket, RoundTrip } from "./vitals";

export function SiteView({ name, onUnlock }: { name: string; onUnlock: () => void }) {
  const { sites, gateway } = useKnown();
  const site = sites?.find((known) => known.name === name);
  if (!sites) return null;
  if (!site) {
    return (
      <Empty title={`There is no site “${name}”.`}>
        <Command>{`tarbet site add ${name}`}</Command>
      </Empty>
    );
  }
  return (
    <>
      <header class="view">
        <div>
          <p class="crumb">
            <a href="#/sites">Sites</a>
          </p>
          <h1>{site.name}</h1>
        </div>
        {site.connected ? <State tone="good">connected</State> : <State tone="wait">not connected</State>}
      </header>
      <p class="dim">
        Site number {site.id}, added <Since when={site.created} />.
      </p>
      {site.connected ? (
        <Links site={site} />
      ) : (
        <Empty title="No agent is connected. At the site, with the token that was printed when it was added:">
          <Command>{`tarbet agent --gateway ${gateway?.agents ?? "grpcs://GATEWAY:8150"} --token-file ${site.name}.token --ca-file ${gateway?.caFile ?? "ca.crt"}`}</Command>
          <p class="dim">Lost the token? Issue another one:</p>
          <Command>{`tarbet site token ${site.name}`}</Command>
        </Empty>
      )}
      <Rights site={site} onUnlock={onUnlock} />
    </>
  );
}

function Links({ site }: { site: Site }) {
  return (
    <section aria-labelledby="links">
      <h2 id="links">Links</h2>
      <Table
        columns={["Link", "Round trip", "Last packet", "Carried", "Gateway", "Agent", "Services", "Since"]}
        rows={site.links}
        row={(link) => (
          <tr key={link.id}>
            <th scope="row">
              <code title={link.id}>{link.id.slice(-12)}</code>
            </th>
            <td data-name="Round trip">
              <RoundTrip links={[link]} />
            </td>
            <td data-name="Last packet">
              <LastPacket id={link.id} />
            </td>
            <td data-name="Carried">
              <Carried id={link.id} />
            </td>
            <td data-name="Gateway">{link.gateway}</td>
            <td data-name="Agent">{link.agent}</td>
            <td data-name="Services">
              <Services names={link.services} />
            </td>
            <td data-name="Since">
              <Since when={link.since} />
            </td>
          </tr>
        )}
      />
    </section>
  );
}

function Rights({ site, onUnlock }: { site: Site; onUnlock: () => void }) {
  const holder = unlockedAs();
  const [tokens, setTokens] = useState<Token[]>();
  const { attempt, ask, dialog, refusal } = useDeeds();
  const list = async () => setTokens(await tokensOf(site.name));
  useEffect(() => {
    setTokens(undefined);
    if (holder) void attempt(list);
  }, [holder, site.name]);

  const remove = () =>
    ask({
      title: `Remove ${site.name}?`,
      text: "All its tokens are taken back and its links end. Nothing at the site itself is touched.",
      verb: "Remove",
      deed: async () => {
        await removeSite(site.name);
        location.hash = "#/sites";
      },
    });
  const revoke = (token: string) =>
    ask({
      title: "Revoke this token?",
      text: "Agents that use it are cut off within a minute and cannot come back with it.",
      verb: "Revoke",
      deed: async () => {
        await revokeToken(site.name, token);
        await list();
      },
    });

  return (
    <section aria-labelledby="rights">
      <h2 id="rights">Tokens and removal</h2>
      {refusal}
      {holder ? (
        <>
          {tokens?.length ? (
            <ul class="list tokens">
              {tokens.map((token) => (
                <li key={token.id}>
                  {token.revoked ? <State tone="plain">revoked</State> : <State tone="good">valid</State>}
                  <code>{token.id}</code>
                  <span class="dim">
                    made <Since when={token.created} />
                  </span>
                  {token.revoked ? null : (
                    <button type="button" onClick={() => revoke(token.id)}>
                      Revoke
                    </button>
                  )}
                </li>
              ))}
            </ul>
          ) : null}
          <button type="button" class="danger" onClick={remove}>
            Remove the site
          </button>
        </>
      ) : (
        <p>
          You are only looking.{" "}
          <button type="button" onClick={onUnlock}>
            Unlock with a token
          </button>{" "}
          to revoke a token or to remove the site.
        </p>
      )}
      {dialog}
    </section>
  );
}
