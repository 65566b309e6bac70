package operators;

import dev.udo.operator.Context;
import dev.udo.operator.Event;
import dev.udo.operator.EventOperator;
import dev.udo.operator.Operator;
import dev.udo.operator.Row;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.ZonedDateTime;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;

final class Finds implements EventOperator {
    @Override
    public void process(Event event, Context ctx) {
        try {
            ctx.emit(Row.of("answer", found(event.getString("asked"))));
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    private static String found(String asked) throws Exception {
        switch (asked) {
            case "user":
                return System.getProperty("user.name") + " " + System.getenv("USER") + " " + System.getenv("LOGNAME");
            case "home":
                Path kept = Path.of(System.getProperty("user.home"), "kept-" + ProcessHandle.current().pid());
                Files.writeString(kept, "x");
                Files.delete(kept);
                return "written";
            case "hours":
                return "" + ZonedDateTime.now().getOffset().getTotalSeconds() / 3600;
            case "authorities":
                TrustManagerFactory trusted = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
                trusted.init((KeyStore) null);
                return "" + ((X509TrustManager) trusted.getTrustManagers()[0]).getAcceptedIssuers().length;
            case "ends":
                Process child = new ProcessBuilder("sleep", "600").start();
                child.destroy();
                return child.waitFor() == 143 ? "terminated" : "" + child.exitValue();
            default:
                throw new StackOverflowError("as of a library: " + asked);
        }
    }

    public static void main(String[] args) {
        Operator.run(new Finds());
    }
}
