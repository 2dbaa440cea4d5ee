//! Where two capabilities meet: what none of them can do alone.

mod jobs;
mod mesh;
mod nets;
mod pods;
