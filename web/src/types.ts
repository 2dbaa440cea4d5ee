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

/** How a link is, as the gateway that holds it knows. */
export interface Vitals {
  id: string;
  site: string;
  roundTripUs: number | null;
  heard: string;
  streamsOpen: number;
  bytesIn: number;
  bytesOut: number;
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
  /** Capabilities that this process shows. */
  panels: string[];
  /** What each part of `tarbet up` turned out to be, in words. */
  parts: Record<string, string>;
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

export interface Resource {
  name: string;
  namespace: string;
  cloud: string;
  ip: string;
  rules: number;
}

export interface Foreign {
  id: string;
  name: string;
  cloud: string;
  region: string;
  spaces: string[];
}

export interface Nets {
  clouds: string[];
  resources: Resource[];
  links: { name: string; from: string; to: string; complete: boolean; tunnels: number }[];
  flows: { from: string; to: string; what: string[] }[];
  /** Networks that others made, as they were imported; older orchestrators tell of none. */
  networks?: Foreign[];
  /** All open flows; the list may be shorter. */
  open: number;
  tags: number;
}

export interface Rule {
  name: string;
  direction?: number;
  src_port?: number;
  dst_port?: number;
  protocol?: number;
  tags?: string[];
  targets?: string[];
}

export interface Verdict {
  allowed: boolean;
  ends: { resource: string; direction: string; rule: string | null }[];
}

export interface Container {
  name: string;
  state: "running" | "ended" | "failed" | "waiting" | "unknown";
  detail: string;
  image: string;
}

export interface Pod {
  uid: string;
  namespace: string;
  name: string;
  job: string;
  containers: Container[];
}

export interface PodList {
  runtime: string;
  pods: Pod[];
}

export interface VirtualNode {
  name: string;
  ready: boolean;
  reason: string | null;
  capacity: Record<string, string>;
}

/** Virtual nodes, and the clusters that did not answer. */
export interface NodeList {
  nodes: VirtualNode[];
  away: Problem[];
}

/** The newest requests of so many, and the clusters that did not answer. */
export interface JobList {
  requests: Job[];
  total: number;
  away: Problem[];
}

export interface Job {
  name: string;
  namespace: string;
  created: string;
  wants: string | null;
  status: string | null;
  reason: string | null;
  message: string | null;
  run: string | null;
  results: Record<string, string> | null;
  started: string | null;
  ended: string | null;
}

export interface Condition {
  type: string;
  status: string;
  reason?: string;
  message?: string;
}

export interface Remote {
  id: string;
  connected: boolean;
  since?: string;
  offered: number;
  imported: number;
  error?: string;
}

export interface Federation {
  name: string;
  namespace: string;
  mesh: string;
  conditions: Condition[] | null;
  remotes: Remote[] | null;
  configured: { id: string }[] | null;
}

interface Selector {
  matchLabels?: Record<string, string>;
}

export interface Exports {
  namespace: string;
  export: {
    serviceList?: string[];
    serviceSelectors?: Selector[];
    namespaceSelectors?: Selector[];
    selectors?: { serviceSelector?: Selector; namespaceSelector?: Selector }[];
  } | null;
  exported: number | null;
  conditions: Condition[] | null;
}

export interface Imported {
  name: string;
  namespace: string;
  hostname: string;
  meshes: string[];
  ready: boolean;
  why: string | null;
  conflict: string | null;
}

export interface Meshes {
  federations: Federation[];
  rules: Exports[];
  imported: Imported[];
  away: Problem[];
}

export interface Entry {
  seq: number;
  time: string;
  site?: string;
  principal?: string;
  wants: string;
  outcome: string;
  code?: string;
}

export interface AuditLog {
  file: string;
  entries: Entry[];
  chain: { whole: true; records: number } | { whole: false; why: string };
}
