//! The kas and agentk protocols, in both roles.
