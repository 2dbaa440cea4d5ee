// What the console's API says. The same names as in `tarbet site list -o json` and its kin.

export interface Problem {
  code: string;
  message: string;
  hop: string;
  cause: string;
  try: string;
}

export interface Link {
  id: string;
  gateway: string;
  agent: string;
  services: string[];
  since: string;
}

export interface Site {
  name: string;
  id: number;
  created: string;
  connected: boolean;
  links: Link[];
}

export interface Step {
  afterUs: number;
  what: string;
}

export interface Story {
  id: string;
  gateway: string;
  began: string;
  principal: string;
  site: string;
  wants: string;
  steps: Step[];
}

export type PartState = { state: "ready" } | { state: "draining" } | { state: "starting" | "failing"; reason: string };

export interface Health {
  ready: boolean;
  parts: Record<string, PartState>;
}

export type Traffic = Record<string, number>;

export interface Gateway {
  name: string;
  version: string;
  agents: string;
  tokenFile: string;
  caFile: string | null;
  metrics: string;
}

export interface Code {
  code: string;
  title: string;
  whose: "caller" | "upstream" | "ours";
  retry: boolean;
  http: number;
  hop: string;
  cause: string;
  try: string;
  page: string;
}

export interface Token {
  id: string;
  created: string;
  expires: string | null;
  revoked: string | null;
}
