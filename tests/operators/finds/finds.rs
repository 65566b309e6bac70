use std::env::var;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, id};

use udo_operator::{Context, Event, Events, Result, row};

struct Finds;

impl Events for Finds {
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
        let asked: &str = event.get("asked")?;
        ctx.emit(row! {"answer": found(asked)?})
    }
}

fn said(command: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(command).args(arguments).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}

fn found(asked: &str) -> Result<String> {
    match asked {
        "user" => Ok([said("id", &["-un"])?, var("USER")?, var("LOGNAME")?].join(" ")),
        "home" => {
            let kept = format!("{}/kept-{}", var("HOME")?, id());
            fs::write(&kept, "x")?;
            fs::remove_file(&kept)?;
            Ok("written".to_string())
        }
        "hours" => Ok(said("date", &["+%-:::z"])?.trim_start_matches('+').trim_start_matches('0').to_string()),
        "authorities" => {
            let all = fs::read_to_string("/etc/ssl/certs/ca-certificates.crt")?;
            Ok(all.matches("BEGIN CERTIFICATE").count().to_string())
        }
        "ends" => {
            let mut child = Command::new("sleep").arg("600").spawn()?;
            said("sh", &["-c", &format!("kill -TERM {}", child.id())])?;
            Ok(if child.wait()?.signal() == Some(15) { "terminated" } else { "otherwise" }.to_string())
        }
        _ => panic!("as of a library: {asked}"),
    }
}

fn main() {
    udo_operator::events(Finds).run()
}
