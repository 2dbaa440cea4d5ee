//! What an error from Redis means for the call it ended.

use ::redis::{ErrorKind, RedisError, ServerErrorKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The connection is of no use any more. Whether the request was carried out is unknown.
    Broken,
    /// This server is not, or no longer, the one to ask. The request was not carried out.
    WrongServer,
    /// The server cannot just now. The request was not carried out.
    Busy,
    /// The server will not.
    Refused,
}

pub(super) fn of(error: &RedisError) -> Verdict {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::Client => Verdict::Broken,
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
        | ErrorKind::MasterNameNotFoundBySentinel => Verdict::WrongServer,
        ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::TryAgain) => Verdict::Busy,
        _ => match error.code() {
            // A script that runs too long, a disk that is full, replicas that are away.
            Some("BUSY" | "MISCONF" | "NOREPLICAS") => Verdict::Busy,
            _ => Verdict::Refused,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(line: &str) -> RedisError {
        let value = ::redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        value.and_then(::redis::Value::extract_error).expect_err("a server error")
    }

    #[test]
    fn errors_are_told_apart() {
        for (line, verdict) in [
            ("READONLY You can't write against a read only replica.", Verdict::WrongServer),
            ("MASTERDOWN Link with MASTER is down", Verdict::WrongServer),
            ("LOADING Redis is loading the dataset in memory", Verdict::Busy),
            ("BUSY Redis is busy running a script.", Verdict::Busy),
            ("MISCONF Errors writing to the AOF file", Verdict::Busy),
            ("NOREPLICAS Not enough good replicas to write.", Verdict::Busy),
            ("NOAUTH Authentication required.", Verdict::Refused),
            ("WRONGPASS invalid username-password pair", Verdict::Refused),
            ("NOPERM this user has no permissions", Verdict::Refused),
            ("OOM command not allowed when used memory > 'maxmemory'.", Verdict::Refused),
            ("ERR unknown command", Verdict::Refused),
        ] {
            assert_eq!(of(&server(line)), verdict, "{line}");
        }
        assert_eq!(of(&std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()), Verdict::Broken);
    }
}
