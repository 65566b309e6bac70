// Answers every event unchanged.
import {run} from "udo-operator";

run({processBatch: (batch) => batch});
