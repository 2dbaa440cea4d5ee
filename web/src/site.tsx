// One site: its links, how to connect it, and what may be done with a token.

import { useEffect, useState } from "preact/hooks";
import { Refused, removeSite, revokeToken, tokensOf, unlockedAs } from "./actions";
import { useKnown } from "./live";
import { Command, Dialog, Empty, ProblemBox, Since, State } from "./pieces";
import { Services } from "./sites";
import type { Problem, Site, Token } from "./types";

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
      <div class="scroll">
        <table class="cards">
          <thead>
            <tr>
              {["Link", "Gateway", "Agent", "Services", "Since"].map((name) => (
                <th key={name} scope="col">{name}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {site.links.map((link) => (
              <tr key={link.id}>
                <th scope="row">
                  <code title={link.id}>{link.id.slice(-12)}</code>
                </th>
                <td data-name="Gateway">{link.gateway}</td>
                <td data-name="Agent">{link.agent}</td>
                <td data-name="Services">
                  <Services names={link.services} />
                </td>
                <td data-name="Since">
                  <Since when={link.since} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

type Wish = { what: "remove" } | { what: "revoke"; token: string };

function Rights({ site, onUnlock }: { site: Site; onUnlock: () => void }) {
  const holder = unlockedAs();
  const [tokens, setTokens] = useState<Token[]>();
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
  const list = () => attempt(async () => setTokens(await tokensOf(site.name)));
  useEffect(() => {
    setTokens(undefined);
    if (holder) void list();
  }, [holder, site.name]);

  const grant = async (wish: Wish) => {
    setWish(undefined);
    await attempt(async () => {
      if (wish.what === "remove") {
        await removeSite(site.name);
        location.hash = "#/sites";
      } else {
        await revokeToken(site.name, wish.token);
        setTokens(await tokensOf(site.name));
      }
    });
  };

  return (
    <section aria-labelledby="rights">
      <h2 id="rights">Tokens and removal</h2>
      {problem ? <ProblemBox problem={problem} /> : null}
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
                    <button type="button" onClick={() => setWish({ what: "revoke", token: token.id })}>
                      Revoke
                    </button>
                  )}
                </li>
              ))}
            </ul>
          ) : null}
          <button type="button" class="danger" onClick={() => setWish({ what: "remove" })}>
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
      {wish ? (
        <Dialog title={wish.what === "remove" ? `Remove ${site.name}?` : "Revoke this token?"} onClose={() => setWish(undefined)}>
          <p>
            {wish.what === "remove"
              ? "All its tokens are taken back and its links end. Nothing at the site itself is touched."
              : "Agents that use it are cut off within a minute and cannot come back with it."}
          </p>
          <div class="choices">
            <button type="button" onClick={() => setWish(undefined)}>
              Keep it
            </button>
            <button type="button" class="danger" onClick={() => void grant(wish)}>
              {wish.what === "remove" ? "Remove" : "Revoke"}
            </button>
          </div>
        </Dialog>
      ) : null}
    </section>
  );
}
