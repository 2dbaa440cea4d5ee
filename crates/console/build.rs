//! Packs the page: browsers take it packed, and as text it would be another fifty kilobytes of program.

use std::path::Path;
use std::{env, fs, io};

use flate2::Compression;
use flate2::read::GzEncoder;

fn main() -> io::Result<()> {
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    for name in ["index.html", "app.js", "app.css", "icon.svg"] {
        let file = Path::new("dist").join(name);
        let mut packed = GzEncoder::new(fs::File::open(file)?, Compression::best());
        io::copy(&mut packed, &mut fs::File::create(Path::new(&out).join(format!("{name}.gz")))?)?;
    }
    #[allow(clippy::print_stdout, reason = "how a build script speaks to cargo")]
    {
        println!("cargo::rerun-if-changed=dist");
        println!("cargo::rerun-if-changed=build.rs");
    }
    Ok(())
}
