//! The books of the pool against a model: whatever callers and agents do, nobody is forgotten.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::StreamBody;
use proptest::prelude::*;

use super::*;
use crate::kas::inbox::{BoxError, Inbox};
use crate::kas::order::{CONNECT_REQUEST, Track};
use crate::kas::outbox::outbox;

#[derive(Debug, Clone)]
enum Step {
    /// A tunnel that offers the first, the second or both methods.
    Arrive(u8),
    /// The stream of one of the tunnels there are ends.
    Lose(prop::sample::Index),
    /// A caller for one of the two methods comes and waits.
    Want(bool),
    /// One of the waiting leaves.
    Leave(prop::sample::Index),
    /// One who has a tunnel gives it back unused.
    Return(prop::sample::Index),
    /// Idle tunnels are sent away.
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..3).prop_map(Step::Arrive),
        2 => any::<prop::sample::Index>().prop_map(Step::Lose),
        4 => any::<bool>().prop_map(Step::Want),
        1 => any::<prop::sample::Index>().prop_map(Step::Leave),
        2 => any::<prop::sample::Index>().prop_map(Step::Return),
        1 => Just(Step::Release),
    ]
}

type Search = Pin<Box<dyn Future<Output = Result<Tunnel, Status>>>>;

struct World {
    pool: TunnelPool,
    agent: Arc<Agent>,
    methods: [MethodPath; 2],
    /// The streams, which end when these are dropped.
    bodies: Vec<OutboxBody>,
    waiting: VecDeque<(bool, Search)>,
    held: Vec<Tunnel>,
}

impl World {
    fn new() -> Self {
        let methods = ["/s/A", "/s/B"].map(|path| MethodPath::parse(path).unwrap());
        let agent = Arc::new(Agent { id: 1, name: "a".into(), project_id: 0 });
        let pool = TunnelPool::new(PoolConfig::default(), |_| {});
        Self { pool, agent, methods, bodies: Vec::new(), waiting: VecDeque::new(), held: Vec::new() }
    }

    fn arrive(&mut self, kind: u8) {
        let offered = match kind {
            0 => vec!["A"],
            1 => vec!["B"],
            _ => vec!["A", "B"],
        };
        let (outbox, body) = outbox();
        let silent = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, BoxError>>());
        let mut track = Track::new(&CONNECT_REQUEST);
        track.step(Some(1)).unwrap();
        let lane = Box::new(Lane {
            id: self.pool.next_id(),
            connection: 1,
            agent: Arc::clone(&self.agent),
            descriptor: Arc::new(Descriptor::new([("s", offered)])),
            inbox: Inbox::new(&HeaderMap::new(), silent).unwrap(),
            outbox,
            track,
        });
        self.bodies.push(self.pool.admit(lane, body));
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Arrive(kind) => self.arrive(kind),
            Step::Lose(index) if !self.bodies.is_empty() => {
                drop(self.bodies.swap_remove(index.index(self.bodies.len())));
            }
            Step::Want(second) => {
                let (pool, method) = (self.pool.clone(), self.methods[usize::from(second)].clone());
                let until = Instant::now() + Duration::from_hours(1);
                self.waiting.push_back((second, Box::pin(async move { pool.find(1, &method, until).await })));
            }
            Step::Leave(index) if !self.waiting.is_empty() => {
                self.waiting.remove(index.index(self.waiting.len()));
            }
            Step::Return(index) if !self.held.is_empty() => {
                drop(self.held.swap_remove(index.index(self.held.len())));
            }
            Step::Release => self.pool.release(1, 1),
            Step::Lose(_) | Step::Leave(_) | Step::Return(_) => {}
        }
        self.settle();
    }

    /// Lets everybody who can go on go on, in the order in which they came.
    fn settle(&mut self) {
        let mut still = VecDeque::new();
        let mut blocked = [false; 2];
        for (second, mut search) in std::mem::take(&mut self.waiting) {
            match search.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(tunnel)) => {
                    // Nobody who came earlier with the same wish is passed over.
                    assert!(!blocked[usize::from(second)]);
                    self.held.push(tunnel);
                }
                // Only for a method that no tunnel offers.
                Poll::Ready(Err(status)) => assert_eq!(status.code(), tonic::Code::Unimplemented),
                Poll::Pending => {
                    blocked[usize::from(second)] = true;
                    still.push_back((second, search));
                }
            }
        }
        self.waiting = still;
        // A tunnel released or lost has ended its stream; the connection drops those.
        self.bodies.retain(|body| !http_body::Body::is_end_stream(body) && !ended(body));
    }

    fn check(&self) {
        let view = self.pool.agents().into_iter().find(|view| view.id == 1);
        let (parked, busy, waiting) = view.map_or((0, 0, 0), |view| (view.parked, view.busy, view.waiting));
        assert_eq!(parked + busy, self.bodies.len(), "every open stream is counted");
        assert_eq!(waiting, self.waiting.len(), "everybody who waits is counted");
        for (second, _) in &self.waiting {
            let method = &self.methods[usize::from(*second)];
            assert!(self.pool.try_find(1, method).is_none(), "nobody waits while there is a tunnel");
        }
    }
}

/// Whether the pool has ended the stream.
fn ended(body: &OutboxBody) -> bool {
    body.has_end()
}

proptest! {
    #[test]
    fn nobody_is_forgotten(steps in proptest::collection::vec(step(), 0..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for step in steps {
                world.take(step);
                world.check();
            }
            // In the end everybody leaves, and nothing is left.
            world.waiting.clear();
            world.held.clear();
            world.bodies.clear();
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert!(world.pool.agents().is_empty());
        });
    }
}
