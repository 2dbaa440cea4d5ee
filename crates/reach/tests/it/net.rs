//! A network in memory: named hosts, connections with delay, and everything that befalls them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tarbet_link::ByteStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

type Listener = Arc<dyn Fn(ByteStream) + Send + Sync>;

/// The network. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Net(Arc<Inner>);

struct Inner {
    hosts: Mutex<Hosts>,
    // Rings when partitions or delays change.
    weather: watch::Sender<Weather>,
}

#[derive(Default)]
struct Hosts {
    listeners: HashMap<String, Listener>,
    // Ends every connection of a host.
    alive: HashMap<String, CancellationToken>,
}

#[derive(Clone, Default)]
struct Weather {
    cut: HashSet<(String, String)>,
    delay: Duration,
    /// Of how many packets one is lost, and sent again after a while; none if zero.
    lost: u32,
}

/// What TCP waits at least before it sends a lost packet again.
const RESENT: Duration = Duration::from_millis(200);

impl Weather {
    fn passes(&self, a: &str, b: &str) -> bool {
        !self.cut.contains(&pair(a, b))
    }
}

fn pair(a: &str, b: &str) -> (String, String) {
    let (a, b) = if a < b { (a, b) } else { (b, a) };
    (a.to_owned(), b.to_owned())
}

impl Default for Net {
    fn default() -> Self {
        Self(Arc::new(Inner { hosts: Mutex::default(), weather: watch::Sender::default() }))
    }
}

impl Net {
    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.0.hosts.lock().unwrap()
    }

    /// Listens at `host:port` until the host is killed.
    pub(crate) fn listen(&self, address: &str, serve: impl Fn(ByteStream) + Send + Sync + 'static) {
        self.hosts().listeners.insert(address.to_owned(), Arc::new(serve));
    }

    /// Connects one host to an address.
    pub(crate) async fn connect(&self, from: &str, address: &str) -> io::Result<ByteStream> {
        let host = address.split(':').next().unwrap_or_default().to_owned();
        let mut weather = self.0.weather.subscribe();
        // A partition looks like silence.
        if weather.wait_for(|weather| weather.passes(from, &host)).await.is_err() {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let delay = weather.borrow().delay;
        tokio::time::sleep(delay).await;
        let (listener, alive) = {
            let mut hosts = self.hosts();
            let listener = hosts.listeners.get(address).cloned().ok_or(io::ErrorKind::ConnectionRefused)?;
            let alive = [from, &host].map(|host| hosts.alive.entry(host.to_owned()).or_default().clone());
            (listener, alive)
        };
        let (near, a) = tokio::io::duplex(64 * 1024);
        let (far, b) = tokio::io::duplex(64 * 1024);
        let (a_read, a_write) = tokio::io::split(a);
        let (b_read, b_write) = tokio::io::split(b);
        let (forth, back) =
            (self.carry(from, &host, a_read, b_write), self.carry(&host, from, b_read, a_write));
        tokio::spawn(async move {
            let [here, there] = alive;
            tokio::select! {
                _ = futures::future::join(forth, back) => {}
                () = here.cancelled() => {}
                () = there.cancelled() => {}
            }
        });
        listener(ByteStream::new(far));
        Ok(ByteStream::new(near))
    }

    fn carry(
        &self,
        from: &str,
        to: &str,
        mut read: ReadHalf<DuplexStream>,
        mut write: WriteHalf<DuplexStream>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (from, to) = (from.to_owned(), to.to_owned());
        let mut weather = self.0.weather.subscribe();
        // The same for the same two, whatever else happens.
        let seed =
            from.bytes().chain(to.bytes()).fold(7, |seed: u64, byte| seed.rotate_left(7) ^ u64::from(byte));
        let mut random = SmallRng::seed_from_u64(seed);
        async move {
            let mut buffer = vec![0; 16 * 1024];
            loop {
                let count = read.read(&mut buffer).await.unwrap_or(0);
                if weather.wait_for(|weather| weather.passes(&from, &to)).await.is_err() {
                    return;
                }
                let Weather { delay, lost, .. } = *weather.borrow();
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                // What comes behind a lost packet waits for it.
                while lost > 0 && random.random_range(0..lost) == 0 {
                    tokio::time::sleep(RESENT + 2 * delay).await;
                }
                if count == 0 {
                    let _ = write.shutdown().await;
                    return;
                }
                if write.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Ends a host as pulling its plug would: its connections break, nothing listens.
    pub(crate) fn kill(&self, host: &str) {
        let mut hosts = self.hosts();
        hosts.listeners.retain(|address, _| address.split(':').next() != Some(host));
        if let Some(alive) = hosts.alive.remove(host) {
            alive.cancel();
        }
    }

    /// Parts two hosts, or joins them again. Connections stay and fall silent.
    pub(crate) fn part(&self, a: &str, b: &str, parted: bool) {
        self.0.weather.send_modify(|weather| {
            if parted {
                weather.cut.insert(pair(a, b))
            } else {
                weather.cut.remove(&pair(a, b))
            };
        });
    }

    /// Joins everything again.
    pub(crate) fn heal(&self) {
        self.0.weather.send_modify(|weather| *weather = Weather::default());
    }

    /// Delays every packet, and loses one of so many.
    pub(crate) fn far(&self, delay: Duration, lost: u32) {
        self.0.weather.send_modify(|weather| (weather.delay, weather.lost) = (delay, lost));
    }

    /// Delays every packet.
    pub(crate) fn delay(&self, delay: Duration) {
        self.0.weather.send_modify(|weather| weather.delay = delay);
    }
}
