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

async function fetched(method: string, path: string, bearer: string | undefined): Promise<string> {
  const headers: Record<string, string> = bearer ? { authorization: `Bearer ${bearer}` } : {};
  const answer = await fetch(`/api/${path}`, { method, headers }).catch(() => undefined);
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
  if (!answer.ok) throw new Refused(problem(text, answer.status));
  return text;
}

/** What was said instead of an answer, whether or not it is in our form. */
function problem(text: string, status: number): Problem {
  try {
    const said = JSON.parse(text) as Partial<Problem> & { error?: string };
    if (said.message) return said as Problem;
    return { code: "", message: said.error ?? `It was refused (${status}).`, hop: "console", cause: `status ${status}`, try: "read the log of the process" };
  } catch {
    return { code: "", message: `It was refused (${status}).`, hop: "console", cause: text.slice(0, 200), try: "read the log of the process" };
  }
}

async function ask(method: string, path: string, bearer = token): Promise<unknown> {
  const text = await fetched(method, `gateway/${path}`, bearer);
  return text ? JSON.parse(text) : undefined;
}

/** Reads something beside the panels; needs no token. */
export const get = async (path: string): Promise<unknown> => JSON.parse(await fetched("GET", path, undefined)) as unknown;
export const text = (path: string): Promise<string> => fetched("GET", path, undefined);

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
export const cancelRequest = (namespace: string, name: string) =>
  fetched("DELETE", `jobs/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`, token);
export const deleteRule = (resource: string, rule: string) =>
  fetched("DELETE", `nets/${resource}/rules/${encodeURIComponent(rule)}`, token);
