// What needs a token. It lives in this variable and nowhere else: no cookie, no storage.

import type { Problem, Token } from "./types";

let token: string | undefined;
let holder: string | undefined;

export const unlockedAs = () => holder;

export function lock() {
  token = undefined;
  holder = undefined;
}

/** A refusal, in the form that every interface of the product has. */
export class Refused extends Error {
  constructor(readonly problem: Problem) {
    super(problem.message);
  }
}

async function ask(method: string, path: string, bearer = token): Promise<unknown> {
  const headers: Record<string, string> = bearer ? { authorization: `Bearer ${bearer}` } : {};
  const answer = await fetch(`/api/gateway/${path}`, { method, headers }).catch(() => undefined);
  if (!answer) {
    throw new Refused({
      code: "",
      message: "The console does not answer.",
      hop: "browser → console",
      cause: "the connection failed",
      try: "check that `tarbet up` still runs",
    });
  }
  const text = await answer.text();
  if (!answer.ok) throw new Refused(JSON.parse(text) as Problem);
  return text ? JSON.parse(text) : undefined;
}

export async function unlock(pasted: string): Promise<string> {
  const me = (await ask("GET", "whoami", pasted)) as { name: string };
  token = pasted;
  holder = me.name;
  return me.name;
}

const site = (name: string) => `sites/${encodeURIComponent(name)}`;

export const tokensOf = (name: string) => ask("GET", `${site(name)}/tokens`) as Promise<Token[]>;
export const revokeToken = (name: string, id: string) =>
  ask("DELETE", `${site(name)}/tokens/${encodeURIComponent(id)}`);
export const removeSite = (name: string) => ask("DELETE", site(name));
